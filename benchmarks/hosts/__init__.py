"""Hosts: testbeds, and the ranks on them, which do what a benchmark asks them for.

`bed` opens a testbed, `start` starts ranks on it, and `ranks` is the benchmark's end of the line to
them; `wire` is theirs. `processors` says how busy the machine is meanwhile.
"""
