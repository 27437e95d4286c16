"""Sums in the one written order; see :func:`compressa.kernels._numpy.tree_sum`.

A caller writes its terms to a small float64 scratch, and adds them to the lanes piece by piece; or
has blocks added up while candidates are listed.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, I64, U32
from ._feedback import magnitude_bits
from ._jit import jit, lean_nested, nested
from ._lanes import sum_all_and_reaching, sum_reaching, sum_squares

LANES = 16

Sums = tuple[F64, U32, I64]
"""Sums and numbers of what reaches some magnitude bits, by these and by block; without any, the
sums of squares."""


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


@lean_nested
def _sum_listed(indices: U32, values: F32, base: np.uint32, lanes: F64) -> tuple[float, int]:
    """What a block's list says, which lacks nothing that reaches the base: lanes add no zeros."""
    count = 0
    lanes[:] = 0
    for i in range(values.size):
        reaches = magnitude_bits(values[i]) >= base
        count += int(reaches)
        lanes[np.int64(indices[i]) % LANES] += np.float64(abs(values[i])) if reaches else 0.0
    return halve(lanes), count


@lean_nested
def add_up(
    sizes: F32, listed: tuple[U32, F32], least: int, block: int, measured: Sums, lanes: F64
) -> None:
    """Note a block's sums.

    Args:
        sizes: Its magnitudes.
        listed: Indices and values of all that reach ``least``.
        least: Magnitude bits; more than there are if nothing was listed.
        block: Its number.
        measured: Receives the sums.
        lanes: Room for 16 numbers.
    """
    sums, bases, reached = measured
    if bases.size == 0:
        sums[0, block] = sum_squares(sizes)
    for s in range(bases.size):
        if int(np.int64(bases[s])) >= least:
            sums[s, block], reached[s, block] = _sum_listed(*listed, bases[s], lanes)
        elif s == 0 and bases.size > 1:
            # The first base is 0. Two sums in one loop take little more time than one.
            both = sum_all_and_reaching(sizes, bases[1])
            sums[0, block], sums[1, block], reached[1, block] = both
            reached[0, block] = sizes.size
        elif s != 1:
            sums[s, block], reached[s, block] = sum_reaching(sizes, bases[s])


@jit
def add_in_order(reached: I64, sums: F64) -> tuple[int, float]:
    """What the blocks' numbers and sums come to, first to last."""
    count, total = 0, 0.0
    for i in range(sums.size):
        count += reached[i]
        total += sums[i]
    return count, total
