"""Collectives as programs without I/O, one algorithm per file."""

from compressa.collectives.accumulator import Accumulator
from compressa.collectives.base import (
    BackendAllReduce,
    Compute,
    Exchange,
    Operation,
    Program,
)
from compressa.collectives.dense import DenseValues

__all__ = [
    "Accumulator",
    "BackendAllReduce",
    "Compute",
    "DenseValues",
    "Exchange",
    "Operation",
    "Program",
]
