"""Scaled signs in NumPy; see :mod:`compressa.kernels.onebit`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, U8, Gradient
from ._feedback import combine, effective, remainder, widened
from ._rounding import put
from ._signs import pack_planes, unpack_planes
from ._tree import tree_sum


def _mean_magnitude(p: F32) -> np.float32:
    total = tree_sum(np.abs(p).astype(np.float64))
    return np.float32(total / p.size) if np.isfinite(total) else np.float32(np.nan)


def _decode(bits: U8, size: int, scale: np.float32) -> F32:
    return np.where(unpack_planes(bits, size), -scale, scale)


def sign_quantize(
    x: Gradient,
    bits: U8,
    scales: F32,
    *,
    block: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.onebit.sign_quantize`."""
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        scales[b] = _mean_magnitude(p)
        packed = pack_planes((p < 0) & np.isfinite(scales[b]))
        bits[b * block // 8 : (b + 1) * block // 8] = packed
        if left is not None and np.isfinite(scales[b]):
            left[:] = remainder(p, _decode(packed, p.size, scales[b]), scale)


def sign_dequantize(
    bits: U8, scales: F32, out: F32, *, block: int, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.onebit.sign_dequantize`."""
    for b in range(scales.size):
        part = out[b * block : (b + 1) * block]
        packed = bits[b * block // 8 : (b + 1) * block // 8]
        combine(part, _decode(packed, part.size, scales[b]), weight, add)


def sum_signs(
    bits: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    block: int,
    weight: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.onebit.sum_signs`."""
    total = np.zeros(out.size, np.float32)
    for packed, units in zip(bits, scales, strict=True):
        sign_dequantize(packed, units, total, block=block, weight=weight, add=True)
    put(total, out)
