"""Selection by threshold and by index in NumPy; see :mod:`compressa.kernels.select`."""

from __future__ import annotations

import math

import numpy as np

from .._arrays import F32, U32, Gradient
from ..select import Unit, in_units
from ._selection import keep_finite, mark, send, sum_blocks, take_largest, unscaled


def select_above(
    x: Gradient,
    threshold: float,
    indices: U32,
    values: F32,
    *,
    unit: Unit = "one",
    residual: F32 | None = None,
    scale: float = 1.0,
) -> int:
    """See :func:`compressa.kernels.select.select_above`."""
    q = unscaled(x, residual, scale)
    if unit != "one" and np.isfinite(q).all():
        largest = float(np.abs(q).max(initial=0.0))
        squares = sum_blocks(q.astype(np.float64) ** 2)
        rms = math.sqrt(squares / max(q.size, 1))
        threshold = in_units(threshold, rms if unit == "rms" else largest, largest)
    count = take_largest(q, indices.size, threshold, indices, values, residual, scale)
    return count if count >= 0 else mark(indices, values)


def select_at(
    x: Gradient,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.select.select_at`."""
    q = unscaled(x, residual, scale)
    if np.isfinite(q).all():
        send(q, indices, values, residual, scale)
        return
    keep_finite(q, indices[:1], residual)
    values[:1], values[1:] = np.nan, 0
