"""Collectives as programs without I/O, one algorithm per file."""

from compressa.collectives.base import (
    BackendAllReduce,
    Combine,
    Compute,
    Exchange,
    Operation,
    Program,
)
from compressa.collectives.combine import DenseSum, shard_edges

__all__ = [
    "BackendAllReduce",
    "Combine",
    "Compute",
    "DenseSum",
    "Exchange",
    "Operation",
    "Program",
    "shard_edges",
]
