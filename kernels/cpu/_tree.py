"""The one order in which floats are summed; see :mod:`compressa.kernels._tree`.

A caller writes its terms to a small float64 scratch, and adds them to the lanes piece by piece.
"""

from __future__ import annotations

from .._arrays import F64
from ._jit import nested

LANES = 16


@nested
def _add_row(row: F64, lanes: F64) -> None:
    # The length is not a constant here, which is what makes LLVM use vectors and not unroll.
    for lane in range(row.size):
        lanes[lane] += row[lane]


@nested
def add_terms(terms: F64, lanes: F64) -> None:
    """Add term i to lane i % 16, in order; the terms before it were a multiple of 16."""
    for first in range(0, terms.size, LANES):
        _add_row(terms[first : min(first + LANES, terms.size)], lanes)


@nested
def halve(lanes: F64) -> float:
    """Lane j takes in lane j + half, for half = 8, 4, 2, 1."""
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return float(lanes[0])
