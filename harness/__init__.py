"""What benchmarks and experiments share: ranks on a testbed's hosts, tables, pages.

`start` starts ranks on hosts and `ranks` is the driver's end of the line to them. `rank` is what
runs there, and `wire` its end. `tables` shows results, at a terminal and on pages alike, and
`pages` puts them there.

Like them, it is no part of the wheel, and nothing of compressa knows it.
"""
