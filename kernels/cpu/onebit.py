"""Scaled signs for NumPy arrays; see :mod:`compressa.kernels.onebit`.

A block goes through short loops while it lies in the first-level cache: sum, signs, residual. The
last one asks memory for the next block meanwhile.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, Gradient
from ..threads import over_slices
from ._feedback import Values, fill, inverse, place
from ._jit import inlined, lean
from ._lanes import sum_magnitudes
from ._prefetch import AHEAD, fetch
from ._signs import SIGN, pack_short, pack_whole, sign_of
from ._values import bits_of
from ._view import view

_ROW = 256  # elements between two rounds of hints to memory
_BYTES = 64  # of signs, the same


@inlined
def _keep(p: F32, residual: F32, unit: np.float32, back: np.float32) -> None:
    magnitude = np.float32(unit).view(np.uint32)
    for i in range(p.size):
        decoded = np.uint32(magnitude | sign_of(p[i])).view(np.float32)
        residual[i] = (p[i] - decoded) * back


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    bits: U8,
    scales: F32,
    block: int,
    room: F32,
) -> None:
    # While a block is worked on, the next one is asked for: a quarter of it in the first loop and
    # in the second, half of it in the third, as long as they take.
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left = view(x, low, high), view(residual, low, high)
        p = view(place(now, left, room), 0, now.size)
        packed = view(bits, low // 8, (high + 7) // 8)
        for i in range(0, p.size, _ROW):
            end, begin = min(i + _ROW, p.size), high + i // 4
            fetch(x, begin, begin + _ROW // 4)
            fetch(residual, begin, begin + _ROW // 4)
            fill(view(now, i, end), view(left, i, end), scale, view(p, i, end))
        total = sum_magnitudes(p)
        if not np.isfinite(total):
            scales[b] = np.float32(np.nan)
            packed[:] = np.uint8(0)
            continue
        scales[b] = np.float32(total / (high - low))
        if p.size == 8 * packed.size:
            for i in range(0, packed.size, _BYTES):
                begin = high + block // 4 + 2 * i
                fetch(x, begin, begin + 2 * _BYTES)
                fetch(residual, begin, begin + 2 * _BYTES)
                pack_whole(p, packed, i, min(i + _BYTES, packed.size))
        else:
            pack_short(p, packed)
        if residual is not None:
            for i in range(0, p.size, _ROW):
                end, begin = min(i + _ROW, p.size), high + block // 2 + i // 2
                fetch(x, begin, begin + _ROW // 2)
                fetch(residual, begin, begin + _ROW // 2)
                _keep(view(p, i, end), view(left, i, end), scales[b], back)


@inlined
def _decode(bits: U8, shift: np.uint32, value: np.float32, add: bool, out: F32) -> None:
    """One plane: ``value`` is the block's scale times the weight."""
    magnitude = np.float32(value).view(np.uint32)
    if add:
        for i in range(out.size):
            sign = np.uint32(np.uint32(np.uint32(bits[i]) << shift) & SIGN)
            out[i] += np.uint32(magnitude ^ sign).view(np.float32)
    else:
        for i in range(out.size):
            sign = np.uint32(np.uint32(np.uint32(bits[i]) << shift) & SIGN)
            out[i] = np.uint32(magnitude ^ sign).view(np.float32)


@lean
def _dequantize(bits: U8, scales: F32, out: F32, block: int, weight: np.float32, add: bool) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, out.size)
        packed = view(bits, low // 8, (high + 7) // 8)
        for j in range(8):
            first = min(low + j * packed.size, high)
            last = min(first + packed.size, high)
            fetch(out, first + AHEAD, last + AHEAD)
            shift, value = np.uint32(31 - j), np.float32(weight * scales[b])
            _decode(packed, shift, value, add, view(out, first, last))


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
    values, factor, back = bits_of(x), np.float32(scale), inverse(scale)

    def work(low: int, high: int) -> None:
        _quantize(
            values[low:high],
            None if residual is None else residual[low:high],
            factor,
            back,
            bits[low // 8 : -(-high // 8)],
            scales[low // block : -(-high // block)],
            block,
            np.empty(block, np.float32),
        )

    over_slices(x.size, block, work)


def sign_dequantize(
    bits: U8, scales: F32, out: F32, *, block: int, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.onebit.sign_dequantize`."""
    factor = np.float32(weight)

    def work(low: int, high: int) -> None:
        packed = bits[low // 8 : -(-high // 8)]
        some = scales[low // block : -(-high // block)]
        _dequantize(packed, some, out[low:high], block, factor, add)

    over_slices(out.size, block, work)
