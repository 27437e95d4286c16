"""The grid of a block that is quantised linearly: its scale, and its offset where it has one."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .._arrays import F32
from ..blockwise import STATISTICS, Form
from ._jit import inlined, lean_nested

MAX, RANGE, L2, CLIPPED = range(len(STATISTICS))
_SMALLEST = np.float32(2.0**-149)
_LARGEST = float(np.finfo(np.float32).max)


class Shape(NamedTuple):
    """A form in numbers."""

    bits: int
    block: int
    statistic: int
    top: int
    bottom: int
    zero: int
    clip: float


@cache
def shape_of(form: Form) -> Shape:
    statistic = STATISTICS.index(form.statistic)
    return Shape(
        form.bits, form.block, statistic, form.top, form.bottom, form.zero, float(form.clip)
    )


@lean_nested
def _ordered(value: np.float32) -> np.int32:
    """Its bits as an integer that orders as the value does; its own inverse."""
    bits = np.float32(value).view(np.int32)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@lean_nested
def _value(ordered: np.int32) -> np.float32:
    bits = np.int32(ordered ^ np.int32(np.int32(ordered >> 31) & np.int32(0x7FFFFFFF)))
    return np.float32(np.int32(bits).view(np.float32))


@inlined
def _extremes(p: F32) -> tuple[np.float32, np.float32]:
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(p.size):
        order = _ordered(p[i])
        low, high = min(low, order), max(high, order)
    return _value(low), _value(high)


@lean_nested
def _from_length(length: float, shape: Shape) -> np.float32:
    """The scale where L of them are worth ``length``, which is positive and finite."""
    return max(np.float32(min(length / shape.top, _LARGEST)), _SMALLEST)


@inlined
def norm_grid(squares: float, shape: Shape) -> tuple[np.float32, np.float32]:
    """The grid of "l2", from the sum of squares, which is finite where all p are."""
    if not np.isfinite(squares):
        return np.float32(np.nan), np.float32(np.nan)
    scale = np.float32(0) if squares == 0.0 else _from_length(np.sqrt(squares), shape)
    return scale, np.float32(0)


@inlined
def clipped_grid(
    largest: np.float32, squares: float, size: int, shape: Shape
) -> tuple[np.float32, np.float32]:
    """The grid of "clipped"."""
    if not np.isfinite(largest):
        return np.float32(np.nan), np.float32(np.nan)
    length = min(np.float64(largest), shape.clip * np.sqrt(squares / size))
    scale = np.float32(0) if largest == np.float32(0) else _from_length(length, shape)
    return scale, np.float32(0)


@inlined
def grid_of(p: F32, largest: np.float32, shape: Shape) -> tuple[np.float32, np.float32]:
    """The grid of "max" or "range": scale (0 if p is flat, NaN if it is not finite) and offset."""
    offset, flat = np.float32(0), largest == np.float32(0)
    if not np.isfinite(largest):
        return np.float32(np.nan), np.float32(np.nan)
    if shape.statistic == MAX:
        scale = np.float32(largest / np.float32(shape.top))
    else:
        offset, high = _extremes(p)
        flat = offset == high
        scale = np.float32(np.float32(high - offset) / np.float32(shape.top))
        if not np.isfinite(scale):
            return np.float32(np.nan), np.float32(np.nan)
    return (np.float32(0) if flat else max(scale, _SMALLEST)), offset
