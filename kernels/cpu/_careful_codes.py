"""Codes of a block one by one, where `_codes.encode` can not make them."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, U32
from ..philox import FRACTION_BITS
from ._codes import ROUNDER, STEPS
from ._grid import Shape
from ._jit import lean_nested

SMALL = np.float32(2.0**-100)
"""Smaller scales are lifted: one over them might overflow."""

_LIFT = np.float32(2.0**64)
_ONE = np.float32(1)
Offset = np.float32 | None


@lean_nested
def decoded(q: np.float32, scale: np.float32, offset: Offset) -> np.float32:
    """Codes times the scale, and the offset where there is one, each step rounded."""
    if offset is None:
        return np.float32(q * scale)
    return np.float32(q * scale + offset)


@lean_nested
def _lifted(p: np.float32, offset: np.float32 | None, lift: np.float32) -> np.float32:
    if offset is None:
        return np.float32(p * lift)
    return np.float32(p * lift - offset * lift)


@lean_nested
def encode_carefully(
    p: F32,
    grid: tuple[np.float32, Offset],
    shape: Shape,
    noise: U32 | None,
    q: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    """Codes, a byte each, where `encode` can not make them.

    Of scales so small that 1 / scale might overflow, of values above L times it, and where there
    are fewer values than codes. Where the scale is 0 or NaN all codes are 0.
    """
    scale, offset = grid
    lift = _LIFT if scale < SMALL else _ONE
    factor = np.float32(_ONE / np.float32(scale * lift))
    for i in range(p.size):
        whole = np.int64(0)
        if scale > np.float32(0):
            t = np.float32(_lifted(p[i], offset, lift) * factor)
            t = min(max(t, np.float32(shape.bottom)), np.float32(shape.top))
            if noise is None:
                whole = np.int64(np.float32(np.float32(t + ROUNDER) - ROUNDER))
            else:
                fixed = np.int64(np.float32(t * STEPS))
                whole = (fixed + np.int64(noise[i])) >> np.int64(FRACTION_BITS)
        q[i] = np.uint8(whole + shape.zero)
        if residual is not None and scale >= np.float32(0):
            residual[i] = (p[i] - decoded(np.float32(whole), scale, offset)) * back
