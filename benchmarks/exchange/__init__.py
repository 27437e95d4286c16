"""Collectives between hosts on shaped links: ours beside Gloo's and MPI's, and the wire's own rate.

`command` is the front. `run` brings testbeds up and asks the ranks on their hosts for one row after
the other (`rank` is ours, `others` starts those of other libraries); `parts` says what there is to
compare, each `method` what it must send; `records` is what is written down, and `targets` works out
from that what was reached.
"""
