"""Collectives as programs without I/O, one algorithm per file."""

from compressa.collectives.base import (
    BackendAllReduce,
    Combine,
    Compute,
    Exchange,
    Operation,
    Program,
)
from compressa.collectives.combine import DenseMax, DenseSum, shard_edges

__all__ = [
    "BackendAllReduce",
    "Combine",
    "Compute",
    "DenseMax",
    "DenseSum",
    "Exchange",
    "Operation",
    "Program",
    "shard_edges",
]
