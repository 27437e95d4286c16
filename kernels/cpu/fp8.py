"""Floats of eight bits for NumPy arrays; see :mod:`compressa.kernels.fp8`.

Rounding adds and takes off again a number so large that the sum has no bits below the format's last
one; how large, follows from the exponent of the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from .._arrays import F32, I64, U8, Gradient
from ..fp8 import Format
from ..threads import over_slices
from ._feedback import Values, factors_of, fill_largest, room_for_p
from ._jit import inlined, intrinsic, lean, lean_nested
from ._payloads import addresses, at, finish, first_of_sums, room_for_sums
from ._prefetch import AHEAD, fetch
from ._values import bits_of
from ._view import view

_SMALLEST = np.float32(2.0**-126)
_ONE = np.float32(1)
_EXPONENT = np.uint32(0x7F800000)
_HALF = np.uint32(0x00400000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
Numbers = tuple[np.uint32, np.uint32, np.float32]
"""Of a format: mantissa, bias, largest."""


@lean_nested
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
    scale: np.float32,
    form: Numbers,
    codes: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    mantissa, bias, largest = form
    factor = np.float32(_ONE / scale)
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
            decoded = np.float32(v * scale)
            residual[i] = (p[i] - (-decoded if sign else decoded)) * back


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    codes: U8,
    scales: F32,
    block: int,
    form: Numbers,
    room: F32,
) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left, out = view(x, low, high), view(residual, low, high), view(codes, low, high)
        p = view(room_for_p(now, left, room), 0, now.size)
        largest = fill_largest(now, left, loss_scale, p, None, None, 0)
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


@intrinsic
def _of_half(typing: Any, bits: Any) -> Any:
    """The number of IEEE half precision that has these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.uint16), generate


@lean_nested
def _value(code: np.uint8, form: Numbers) -> np.float32:
    """What a code stands for: e5m2 is the upper byte of a half, e4m3 has a bias of its own.

    Computed, since a look-up is a slow access to memory for every element.
    """
    mantissa, bias, _ = form
    rest, sign = np.uint16(code & np.uint8(0x7F)), np.uint16(code & np.uint8(0x80))
    moved = np.uint16(rest << np.uint16(np.uint32(10) - mantissa))
    value = _of_half(np.uint16(moved | np.uint16(sign << np.uint16(8))))
    factor = np.float32(np.uint32(np.uint32(142 - bias) << np.uint32(23)).view(np.float32))
    last = np.uint16(0x7E) if mantissa == np.uint32(3) else np.uint16(0x7F)
    return np.float32(value * factor) if rest <= last else np.float32(np.nan)


@inlined
def _decode(
    codes: U8, form: Numbers, scale: np.float32, weight: np.float32, add: bool, out: F32
) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * np.float32(_value(codes[i], form) * scale)
    else:
        for i in range(out.size):
            out[i] = weight * np.float32(_value(codes[i], form) * scale)


@lean
def _dequantize(
    codes: U8, scales: F32, out: F32, block: int, form: Numbers, weight: np.float32, add: bool
) -> None:
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, out.size)
        fetch(out, low + AHEAD, high + AHEAD)
        _decode(view(codes, low, high), form, scales[b], weight, add, view(out, low, high))


@lean
def _sum(
    codes: I64,
    scales: I64,
    elems: tuple[int, int],
    sums: F32,
    rounded: Values | None,
    block: int,
    form: Numbers,
    weight: np.float32,
    like: U8,
) -> None:
    """Blocks from element low to high; arrays are given by the addresses where they begin."""
    for low in range(elems[0], elems[1], block):
        high, at_scale = min(low + block, elems[1]), 4 * (low // block)
        at_sums = first_of_sums(rounded, low)
        part = view(sums, at_sums, at_sums + high - low)
        part[:] = np.float32(0)
        for i in range(codes.size):
            some = at(like, codes[i] + low, high - low)
            fetch(some, AHEAD, AHEAD + high - low)
            _decode(some, form, at(sums, scales[i] + at_scale, 1)[0], weight, True, part)
        finish(part, rounded, low)


def _numbers(form: Format) -> Numbers:
    return np.uint32(form.mantissa), np.uint32(form.bias), np.float32(form.largest)


def quantize_fp8(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Format,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    given, (factor, back) = bits_of(x), factors_of(loss_scale)
    numbers = _numbers(form)

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
    numbers, factor = _numbers(form), np.float32(weight)

    def work(low: int, high: int) -> None:
        some = scales[low // block : -(-high // block)]
        _dequantize(codes[low:high], some, out[low:high], block, numbers, factor, add)

    over_slices(out.size, block, work)


def sum_fp8(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Format,
    block: int,
    weight: float = 1.0,
) -> None:
    numbers, factor, like = _numbers(form), np.float32(weight), np.empty(0, np.uint8)
    packed, own = addresses(codes), addresses(scales)

    def work(low: int, high: int) -> None:
        sums, rounded = room_for_sums(out, block)
        _sum(packed, own, (low, high), sums, rounded, block, numbers, factor, like)

    over_slices(out.size, block, work)
