"""Benchmarks: what compressors cost, in shares of what this machine's memory can do.

`compressa bench kernels` is the front. A case is a row of `table.CASES`; it names a compressor
of the contract table, what is done with it, its target and the plain implementations that it is
compared with. `run` measures cases, `records` says what is written down.
"""

from compressa.bench.cases import Case, Operation, Peer
from compressa.bench.records import Header, Measurement, Row, read, write
from compressa.bench.run import Bench
from compressa.bench.table import CASES

__all__ = [
    "CASES",
    "Bench",
    "Case",
    "Header",
    "Measurement",
    "Operation",
    "Peer",
    "Row",
    "read",
    "write",
]
