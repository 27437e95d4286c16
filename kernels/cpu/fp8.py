"""Floats of eight bits for NumPy arrays; see :mod:`compressa.kernels.fp8`.

Rounding adds and takes off again a number so large that the sum has no bits below the format's last
one; how large, follows from the exponent of the value.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, Gradient
from ..fp8 import Format, values
from ..threads import over_slices
from ._feedback import Values, factors_of, fill_largest, place
from ._jit import inlined, lean
from ._prefetch import AHEAD, fetch
from ._values import bits_of
from ._view import view

_SMALLEST = np.float32(2.0**-126)
_ONE = np.float32(1)
_EXPONENT = np.uint32(0x7F800000)
_HALF = np.uint32(0x00400000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)


@lean
def _rounded(t: np.float32, mantissa: np.uint32, least: np.uint32) -> np.float32:
    """|t| to nearest, with ``mantissa`` bits and no exponent below that of the bits ``least``."""
    bits = np.uint32(np.float32(t).view(np.uint32) & _MAGNITUDE)
    exponent = max(np.uint32(bits & _EXPONENT), least)
    shift = np.uint32(np.uint32(23) - mantissa)
    large = np.uint32(np.uint32(exponent + np.uint32(shift << np.uint32(23))) | _HALF)
    rounder = np.float32(np.uint32(large).view(np.float32))
    magnitude = np.float32(np.uint32(bits).view(np.float32))
    return np.float32(np.float32(magnitude + rounder) - rounder)


@inlined
def _encode(
    p: F32,
    unit: np.float32,
    form: tuple[np.uint32, np.uint32, np.float32],
    codes: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    mantissa, bias, largest = form
    factor = np.float32(_ONE / unit)
    least = np.uint32(np.uint32(128 - bias) << np.uint32(23))
    smallest = np.float32(np.uint32(least).view(np.float32))
    steps = np.float32(np.float32(np.uint32(1) << mantissa) / smallest)
    offset = np.uint32(np.uint32(127 - bias) << mantissa)
    for i in range(p.size):
        t = np.float32(p[i] * factor)
        v = min(_rounded(t, mantissa, least), largest)
        bits = np.float32(v).view(np.uint32)
        normal = np.uint32(np.uint32(bits >> np.uint32(np.uint32(23) - mantissa)) - offset)
        code = normal if v >= smallest else np.uint32(np.int32(v * steps))
        sign = np.uint32(np.float32(t).view(np.uint32) >> np.uint32(31))
        codes[i] = np.uint8(code | np.uint32(sign << np.uint32(7)))
        if residual is not None:
            decoded = np.float32(v * unit)
            residual[i] = (p[i] - (-decoded if sign else decoded)) * back


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    codes: U8,
    scales: F32,
    block: int,
    form: tuple[np.uint32, np.uint32, np.float32],
    room: F32,
) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left, out = view(x, low, high), view(residual, low, high), view(codes, low, high)
        p = view(place(now, left, room), 0, now.size)
        largest = fill_largest(now, left, scale, p, None, None, 0)
        fetch(x, low + AHEAD, high + AHEAD)
        fetch(residual, low + AHEAD, high + AHEAD)
        fetch(codes, low + AHEAD, high + AHEAD)
        if np.isfinite(largest) and largest > np.float32(0):
            scales[b] = max(np.float32(largest / form[2]), _SMALLEST)
            _encode(p, scales[b], form, out, left, back)
        else:
            scales[b] = np.float32(np.nan) if largest != np.float32(0) else np.float32(0)
            out[:] = np.uint8(0)
            if residual is not None and largest == np.float32(0):
                for i in range(p.size):
                    left[i] = p[i]  # zeros, with their signs


@inlined
def _decode(
    codes: U8, table: F32, unit: np.float32, weight: np.float32, add: bool, out: F32
) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * (table[codes[i]] * unit)
    else:
        for i in range(out.size):
            out[i] = weight * (table[codes[i]] * unit)


@lean
def _dequantize(
    codes: U8, scales: F32, out: F32, block: int, table: F32, weight: np.float32, add: bool
) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, out.size)
        fetch(out, low + AHEAD, high + AHEAD)
        _decode(view(codes, low, high), table, scales[b], weight, add, view(out, low, high))


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
    given, (factor, back) = bits_of(x), factors_of(scale)
    numbers = np.uint32(form.mantissa), np.uint32(form.bias), np.float32(form.largest)

    def work(low: int, high: int) -> None:
        _quantize(
            given[low:high],
            None if residual is None else residual[low:high],
            factor,
            back,
            codes[low:high],
            scales[low // block : -(-high // block)],
            block,
            numbers,
            np.empty(block, np.float32),
        )

    over_slices(x.size, block, work)


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
    table, factor = values(form), np.float32(weight)

    def work(low: int, high: int) -> None:
        some = scales[low // block : -(-high // block)]
        _dequantize(codes[low:high], some, out[low:high], block, table, factor, add)

    over_slices(out.size, block, work)
