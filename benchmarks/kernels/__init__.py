"""Benchmarks: what compressors cost, in shares of what this machine's memory can do.

`command` is the front. A case is a row of `table.CASES`; it names a compressor of the contract
table, what is done with it, its target and the plain implementations that it is compared with.
`run` measures cases, `records` says what is written down.
"""

from benchmarks.kernels.cases import Case, Operation, Peer
from benchmarks.kernels.records import Header, Measurement, Row
from benchmarks.kernels.run import Bench
from benchmarks.kernels.table import CASES

__all__ = [
    "CASES",
    "Bench",
    "Case",
    "Header",
    "Measurement",
    "Operation",
    "Peer",
    "Row",
]
