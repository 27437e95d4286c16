"""What goes in: p = x + scale * residual, one element at a time, with or without a residual.

Numba compiles a caller once for arrays and once for None; the branch on None is gone before LLVM
sees the loop, so both vectorise. ``x`` is float32, or the bits of 16-bit floats (`_values.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import overload

from .._arrays import F32
from ._jit import jit
from ._values import load
from ._view import view

Values = npt.NDArray[Any]


@jit
def effective(x: Values, residual: F32 | None, scale: np.float32, i: int) -> np.float32:
    """Element i of p; the product is rounded before the sum."""
    if residual is None:
        return np.float32(load(x, i))
    return np.float32(load(x, i) + scale * residual[i])


@jit
def effective_block(x: Values, residual: F32 | None, scale: np.float32, sums: F32) -> F32:
    """All of p, written to the front of ``sums``."""
    p = sums[: x.size]
    for i in range(x.size):
        p[i] = effective(x, residual, scale, i)
    return p


@jit
def _effective_largest(x: Values, residual: F32 | None, scale: np.float32, p: F32) -> np.uint32:
    largest = np.uint32(0)
    for i in range(x.size):
        value = effective(x, residual, scale, i)
        p[i] = value
        largest = max(largest, magnitude_bits(value))
    return largest


def effective_largest(
    x: Values, residual: F32 | None, scale: np.float32, room: F32
) -> tuple[F32, np.float32]:
    """All of p, and its largest magnitude: a NaN above an infinity above the rest.

    ``p`` is ``x`` itself where that is float32 and has no residual, else in the front of ``room``.
    """
    raise NotImplementedError("only compiled code calls this")


@overload(effective_largest)
def _implement(x: Any, residual: Any, scale: Any, room: Any) -> Any:
    def in_place(x: Any, residual: Any, scale: Any, room: Any) -> Any:
        bits = largest_bits(x, residual, scale)
        return x, np.float32(np.uint32(bits).view(np.float32))

    def in_room(x: Any, residual: Any, scale: Any, room: Any) -> Any:
        p = view(room, 0, x.size)
        bits = _effective_largest(x, residual, scale, p)
        return p, np.float32(np.uint32(bits).view(np.float32))

    direct = isinstance(residual, types.NoneType) and x.dtype == types.float32
    return in_place if direct else in_room


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
def largest_bits(x: Values, residual: F32 | None, scale: np.float32) -> np.uint32:
    """The largest ``magnitude_bits`` of p; integers, because their maximum vectorises."""
    largest = np.uint32(0)
    for i in range(x.size):
        largest = max(largest, magnitude_bits(effective(x, residual, scale, i)))
    return largest


def inverse(scale: float) -> np.float32:
    """1 / scale, as the reference rounds it."""
    return np.float32(1) / np.float32(scale)
