"""Floats of eight bits in NumPy; see :mod:`compressa.kernels.fp8`.

Rounding is a search among the numbers that the format has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient
from ..fp8 import Format, values
from ._feedback import combine, effective, remainder, widened
from ._rounding import put

_SMALLEST = np.float32(2.0**-126)


def _unit(p: F32, form: Format) -> np.float32:
    largest = np.abs(p).max()
    if not np.isfinite(largest):
        return np.float32(np.nan)
    if largest == 0:
        return np.float32(0)
    return max(largest / np.float32(form.largest), _SMALLEST)


def _codes(p: F32, unit: np.float32, form: Format) -> U8:
    if not unit > 0:
        return np.zeros(p.size, np.uint8)
    t = p * (np.float32(1) / unit)
    table = values(form)[:128]
    table = table[np.isfinite(table)].astype(np.float64)
    magnitude = np.minimum(np.abs(t).astype(np.float64), form.largest)
    below = np.searchsorted(table, magnitude, side="right") - 1
    above = np.minimum(below + 1, table.size - 1)
    middle = (table[below] + table[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (below % 2 == 1))
    code = np.where(up, above, below)
    signed: U8 = np.where(np.signbit(t), code + 128, code).astype(np.uint8)
    return signed


def quantize_fp8(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Format,
    block: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.fp8.quantize_fp8`."""
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        scales[b] = _unit(p, form)
        codes[elements] = _codes(p, scales[b], form)
        if left is not None and not np.isnan(scales[b]):
            left[:] = remainder(p, values(form)[codes[elements]] * scales[b], scale)


def dequantize_fp8(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.fp8.dequantize_fp8`."""
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        combine(out[elements], values(form)[codes[elements]] * scales[b], weight, add)


def sum_fp8(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.fp8.sum_fp8`."""
    total = np.zeros(out.size, np.float32)
    for some, units in zip(codes, scales, strict=True):
        dequantize_fp8(some, units, total, form=form, block=block, weight=weight, add=True)
    put(total, out)
