"""Block-wise quantisation for NumPy arrays; see :mod:`compressa.kernels.blockwise`.

Each block goes through several short loops while it lies in the first-level cache; memory is
passed over once. Every loop is free of branches, so that LLVM vectorises it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U8
from ._feedback import effective_block, inverse, largest_bits, part
from ._jit import jit

_INFINITY = np.uint32(0x7F800000)
_SMALL = np.float32(2.0**-100)
_SMALLEST = np.float32(2.0**-149)
_LIFT = np.float32(2.0**64)
# Adding 1.5 * 2**23 leaves no bits for a fraction, so the sum is rounded half to even; taking it
# off again gives the integer (and +0, never -0). Unlike rint, this vectorises.
_ROUNDER = np.float32(12582912.0)


@jit
def _round(p: F32, factor: np.float32, q: F32) -> None:
    for i in range(p.size):
        q[i] = (p[i] * factor + _ROUNDER) - _ROUNDER


@jit
def _round_tiny(p: F32, unit: np.float32, top: np.float32, q: F32) -> None:
    for i in range(p.size):
        quotient = (p[i] * _LIFT) / (unit * _LIFT)
        q[i] = max(-top, min(top, (quotient + _ROUNDER) - _ROUNDER))


@jit
def _integers(p: F32, top: np.float32, q: F32) -> np.float32:
    """Fill q with the integers and return the unit."""
    bits = largest_bits(p, None, np.float32(1))
    largest = np.uint32(bits).view(np.float32)
    if bits >= _INFINITY or bits == 0:
        q[: p.size] = np.float32(0)
        return np.float32(np.nan) if bits >= _INFINITY else np.float32(0)
    if largest >= _SMALL:
        _round(p, top / largest, q)
        return np.float32(largest / top)
    unit = max(np.float32(largest / top), _SMALLEST)
    _round_tiny(p, unit, top, q)
    return unit


@jit
def _pack_bytes(q: F32, codes: U8) -> None:
    for i in range(codes.size):
        codes[i] = np.uint8(np.int32(q[i]))


@jit
def _pack_nibbles(q: F32, size: int, codes: U8) -> None:
    half = codes.size
    if size % 2:
        q[size] = np.float32(0)
    low, high = q[:half], q[half : 2 * half]
    for i in range(half):
        codes[i] = np.uint8((np.int32(low[i]) + 8) | ((np.int32(high[i]) + 8) << 4))


@jit
def _keep(p: F32, residual: F32 | None, unit: np.float32, back: np.float32, q: F32) -> None:
    if residual is not None:
        for i in range(p.size):
            residual[i] = (p[i] - q[i] * unit) * back


@jit
def _quantize(
    x: F32,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    codes: U8,
    scales: F32,
    bits: int,
    block: int,
) -> None:
    room = min(block, x.size + 1)
    q, sums = np.empty(room, np.float32), np.empty(room, np.float32)
    top = np.float32((1 << (bits - 1)) - 1)
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        left = part(residual, low, high)
        p = effective_block(x[low:high], left, scale, sums)
        unit = _integers(p, top, q)
        scales[b] = unit
        if bits == 8:
            _pack_bytes(q, codes[low:high])
        else:
            _pack_nibbles(q, high - low, codes[low // 2 : (high + 1) // 2])
        if not np.isnan(unit):
            _keep(p, left, unit, back, q)


@jit
def _decode_bytes(
    codes: npt.NDArray[np.int8], unit: np.float32, weight: np.float32, add: bool, out: F32
) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * (np.float32(codes[i]) * unit)
    else:
        for i in range(out.size):
            out[i] = weight * (np.float32(codes[i]) * unit)


@jit
def _decode_nibbles(
    codes: U8, shift: int, unit: np.float32, weight: np.float32, add: bool, out: F32
) -> None:
    if add:
        for i in range(out.size):
            nibble = np.int32(codes[i] >> shift & 15) - 8
            out[i] += weight * (np.float32(nibble) * unit)
    else:
        for i in range(out.size):
            nibble = np.int32(codes[i] >> shift & 15) - 8
            out[i] = weight * (np.float32(nibble) * unit)


@jit
def _dequantize(
    codes: U8, scales: F32, out: F32, bits: int, block: int, weight: np.float32, add: bool
) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, out.size)
        if bits == 8:
            signed = codes[low:high].view(np.int8)
            _decode_bytes(signed, scales[b], weight, add, out[low:high])
        else:
            packed = codes[low // 2 : (high + 1) // 2]
            middle = low + packed.size
            _decode_nibbles(packed, 0, scales[b], weight, add, out[low:middle])
            _decode_nibbles(packed, 4, scales[b], weight, add, out[middle:high])


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
    _quantize(x, residual, np.float32(scale), inverse(scale), codes, scales, bits, block)


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
    _dequantize(codes, scales, out, bits, block, np.float32(weight), add)
