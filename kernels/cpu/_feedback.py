"""What goes in: p = x + scale * residual, one element at a time, with or without a residual.

Numba compiles a caller once for arrays and once for None; the branch on None is gone before LLVM
sees the loop, so both vectorise.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ._jit import jit


@jit
def effective(x: F32, residual: F32 | None, scale: np.float32, i: int) -> np.float32:
    """Element i of p; the product is rounded before the sum."""
    if residual is None:
        return np.float32(x[i])
    return np.float32(x[i] + scale * residual[i])


@jit
def effective_block(x: F32, residual: F32 | None, scale: np.float32, sums: F32) -> F32:
    """All of p: ``x`` itself without a residual, else written to the front of ``sums``."""
    if residual is None:
        return x
    p = sums[: x.size]
    for i in range(x.size):
        p[i] = x[i] + scale * residual[i]
    return p


@jit
def part(residual: F32 | None, low: int, high: int) -> F32 | None:
    """The residual of a block, or None."""
    if residual is None:
        return None
    return residual[low:high]


@jit
def magnitude_bits(value: np.float32) -> np.uint32:
    """The bits of |value|: they order as the magnitudes do, with Inf and then NaN on top."""
    bits = np.float32(value).view(np.uint32)
    return np.uint32(bits & np.uint32(0x7FFFFFFF))


@jit
def largest_bits(x: F32, residual: F32 | None, scale: np.float32) -> np.uint32:
    """The largest ``magnitude_bits`` of p; integers, because their maximum vectorises."""
    largest = np.uint32(0)
    for i in range(x.size):
        largest = max(largest, magnitude_bits(effective(x, residual, scale, i)))
    return largest


def inverse(scale: float) -> np.float32:
    """1 / scale, as the reference rounds it."""
    return np.float32(1) / np.float32(scale)
