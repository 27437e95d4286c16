"""Block-wise quantisation in NumPy; see :mod:`compressa.kernels.blockwise`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U8
from ._feedback import combine, effective, remainder

_SMALL = np.float32(2.0**-100)
_SMALLEST = np.float32(2.0**-149)
_LIFT = np.float32(2.0**64)


def _integers(p: F32, levels: int) -> tuple[npt.NDArray[np.int8], np.float32]:
    largest, top = np.abs(p).max(), np.float32(levels)
    if not np.isfinite(largest):
        return np.zeros(p.size, np.int8), np.float32(np.nan)
    if largest == 0:
        return np.zeros(p.size, np.int8), np.float32(0)
    if largest >= _SMALL:
        return np.rint(p * (top / largest)).astype(np.int8), largest / top
    unit = max(largest / top, _SMALLEST)
    quotient = np.rint((p * _LIFT) / (unit * _LIFT))
    return np.clip(quotient, -top, top).astype(np.int8), unit


def _pack(q: npt.NDArray[np.int8], bits: int) -> U8:
    if bits == 8:
        return q.view(np.uint8)
    half = (q.size + 1) // 2
    nibbles = np.full(2 * half, 8, np.uint8)
    nibbles[: q.size] = q + 8
    return nibbles[:half] | nibbles[half:] << np.uint8(4)


def _unpack(codes: U8, size: int, bits: int) -> F32:
    if bits == 8:
        return codes.view(np.int8).astype(np.float32)
    nibbles = np.concatenate([codes & 15, codes >> 4])[:size]
    return nibbles.astype(np.float32) - np.float32(8)


def quantize_blockwise(
    x: F32,
    codes: U8,
    scales: F32,
    *,
    bits: int,
    block: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.quantize_blockwise`."""
    for b in range(scales.size):
        elements = slice(b * block, (b + 1) * block)
        left = None if residual is None else residual[elements]
        p = effective(x[elements], left, scale)
        q, scales[b] = _integers(p, 2 ** (bits - 1) - 1)
        codes[b * block * bits // 8 : (b + 1) * block * bits // 8] = _pack(q, bits)
        if left is not None and np.isfinite(scales[b]):
            left[:] = remainder(p, q.astype(np.float32) * scales[b], scale)


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    bits: int,
    block: int,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.blockwise.dequantize_blockwise`."""
    for b in range(scales.size):
        part = out[b * block : (b + 1) * block]
        packed = codes[b * block * bits // 8 : (b + 1) * block * bits // 8]
        combine(part, _unpack(packed, part.size, bits) * scales[b], weight, add)
