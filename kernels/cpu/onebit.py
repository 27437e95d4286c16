"""Scaled signs for NumPy arrays; see :mod:`compressa.kernels.onebit`.

A block goes through three short loops while it lies in the first-level cache: sum, signs, residual.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U8
from ._feedback import effective, inverse, part
from ._jit import jit
from ._tree import LANES, add_terms, halve

_TERMS = 16 * LANES  # one piece of a sum: small enough for the first-level cache


@jit
def _magnitudes(x: F32, residual: F32 | None, scale: np.float32, terms: F64) -> None:
    for i in range(x.size):
        terms[i] = np.float64(abs(effective(x, residual, scale, i)))


@jit
def _sum_magnitudes(
    x: F32, residual: F32 | None, scale: np.float32, terms: F64, lanes: F64
) -> float:
    lanes[:] = 0.0
    for low in range(0, x.size, terms.size):
        high = min(low + terms.size, x.size)
        _magnitudes(x[low:high], part(residual, low, high), scale, terms)
        add_terms(terms[: high - low], lanes)
    return halve(lanes)


@jit
def _pack(x: F32, residual: F32 | None, scale: np.float32, bits: U8) -> None:
    bits[:] = np.uint8(0)
    for j in range(8):
        low, high = j * bits.size, min((j + 1) * bits.size, x.size)
        now, left, plane = x[low:high], part(residual, low, high), np.uint8(1 << j)
        for i in range(now.size):
            negative = effective(now, left, scale, i) < np.float32(0)
            bits[i] |= plane if negative else np.uint8(0)


@jit
def _keep(
    x: F32, residual: F32 | None, scale: np.float32, unit: np.float32, back: np.float32
) -> None:
    if residual is not None:
        for i in range(x.size):
            p = effective(x, residual, scale, i)
            decoded = -unit if p < np.float32(0) else unit
            residual[i] = (p - decoded) * back


@jit
def _quantize(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    bits: U8,
    scales: F32,
    block: int,
) -> None:
    terms, lanes = np.empty(_TERMS, np.float64), np.empty(LANES, np.float64)
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left = x[low:high], part(residual, low, high)
        total = _sum_magnitudes(now, left, scale, terms, lanes)
        _pack(now, left, scale, bits[low // 8 : (high + 7) // 8])
        if np.isfinite(total):
            scales[b] = np.float32(total / (high - low))
            _keep(now, left, scale, scales[b], back)
        else:
            scales[b] = np.float32(np.nan)


@jit
def _decode(bits: U8, j: int, value: np.float32, add: bool, out: F32) -> None:
    """One plane: ``value`` is the block's scale times the weight."""
    mask = np.uint8(1 << j)
    if add:
        for i in range(out.size):
            out[i] += -value if bits[i] & mask else value
    else:
        for i in range(out.size):
            out[i] = -value if bits[i] & mask else value


@jit
def _dequantize(bits: U8, scales: F32, out: F32, block: int, weight: np.float32, add: bool) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, out.size)
        packed = bits[low // 8 : (high + 7) // 8]
        for j in range(8):
            first = min(low + j * packed.size, high)
            last = min(first + packed.size, high)
            _decode(packed, j, weight * scales[b], add, out[first:last])


def sign_quantize(
    x: F32,
    bits: U8,
    scales: F32,
    *,
    block: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.onebit.sign_quantize`."""
    _quantize(x, residual, np.float32(scale), inverse(scale), bits, scales, block)


def sign_dequantize(
    bits: U8, scales: F32, out: F32, *, block: int, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.onebit.sign_dequantize`."""
    _dequantize(bits, scales, out, block, np.float32(weight), add)
