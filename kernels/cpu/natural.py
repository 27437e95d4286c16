"""Natural compression for NumPy arrays; see :mod:`compressa.kernels.natural`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I64, U8, U32, Gradient
from ..natural import GROUP
from ..philox import Noise
from ..threads import over_slices
from ._feedback import Values, factors_of, fill, room_for_p
from ._jit import inlined, lean
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._payloads import addresses, at, finish, first_of_sums, room_for_sums
from ._planes import SIGN, pack_short, pack_whole, sign_of
from ._prefetch import AHEAD, fetch
from ._values import bits_of
from ._view import view

_ROW = 256  # elements between two rounds of hints to memory
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_NORMAL = np.uint32(1 << 23)


@inlined
def _round(p: F32, noise: U32, exponents: U8, residual: F32 | None, back: np.float32) -> None:
    for i in range(p.size):
        bits = np.uint32(np.float32(p[i]).view(np.uint32) & _MAGNITUDE)
        raised = np.uint32(bits + noise[i])
        exponent = min(np.uint32(raised >> np.uint32(23)), np.uint32(254))
        exponent = exponent if bits >= _NORMAL else np.uint32(0)
        exponent = exponent if bits < _INFINITY else np.uint32(255)
        exponents[i] = np.uint8(exponent)
        if residual is not None:
            decoded = np.uint32(np.uint32(exponent << np.uint32(23)) | sign_of(p[i]))
            error = np.float32(p[i] - np.float32(np.uint32(decoded).view(np.float32))) * back
            residual[i] = error if bits < _INFINITY else residual[i]


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    exponents: U8,
    signs: U8,
    key: Key,
    drawn: U32,
    room: F32,
) -> None:
    for low in range(0, x.size, GROUP):
        high = min(low + GROUP, x.size)
        now, left = view(x, low, high), view(residual, low, high)
        p = view(room_for_p(now, left, room), 0, now.size)
        fill(now, left, loss_scale, p)
        at = drawn_at(key, low, high, drawn)
        packed = view(signs, low // 8, (high + 7) // 8)
        if p.size == 8 * packed.size:
            pack_whole(p, packed, None, None, 0)
        else:
            pack_short(p, packed)
        noise, codes = view(drawn, at, at + high - low), view(exponents, low, high)
        for i in range(0, p.size, _ROW):
            end = min(i + _ROW, p.size)
            fetch(x, low + i + AHEAD, low + end + AHEAD)
            fetch(residual, low + i + AHEAD, low + end + AHEAD)
            fetch(exponents, low + i + AHEAD, low + end + AHEAD)
            now, kept = view(p, i, end), view(left, i, end)
            _round(now, view(noise, i, end), view(codes, i, end), kept, back)


@inlined
def _decode(
    exponents: U8, bits: U8, shift: np.uint32, weight: np.float32, add: bool, out: F32
) -> None:
    """One plane."""
    if add:
        for i in range(out.size):
            sign = np.uint32(np.uint32(np.uint32(bits[i]) << shift) & SIGN)
            value = np.uint32(np.uint32(np.uint32(exponents[i]) << np.uint32(23)) | sign)
            out[i] += weight * np.float32(np.uint32(value).view(np.float32))
    else:
        for i in range(out.size):
            sign = np.uint32(np.uint32(np.uint32(bits[i]) << shift) & SIGN)
            value = np.uint32(np.uint32(np.uint32(exponents[i]) << np.uint32(23)) | sign)
            out[i] = weight * np.float32(np.uint32(value).view(np.float32))


@lean
def _dequantize(exponents: U8, signs: U8, out: F32, weight: np.float32, add: bool) -> None:
    for low in range(0, out.size, GROUP):
        high = min(low + GROUP, out.size)
        packed = view(signs, low // 8, (high + 7) // 8)
        for j in range(8):
            first = min(low + j * packed.size, high)
            last = min(first + packed.size, high)
            fetch(out, first + AHEAD, last + AHEAD)
            shift, codes = np.uint32(31 - j), view(exponents, first, last)
            _decode(codes, packed, shift, weight, add, view(out, first, last))


@lean
def _sum(
    exponents: I64,
    signs: I64,
    elems: tuple[int, int],
    sums: F32,
    rounded: Values | None,
    weight: np.float32,
    like: U8,
) -> None:
    """Groups from element low to high; arrays are given by the addresses where they begin."""
    for low in range(elems[0], elems[1], GROUP):
        size = min(GROUP, elems[1] - low)
        at_sums = first_of_sums(rounded, low)
        part = view(sums, at_sums, at_sums + size)
        part[:] = np.float32(0)
        for i in range(exponents.size):
            codes = at(like, exponents[i] + low, size)
            packed = at(like, signs[i] + low // 8, (size + 7) // 8)
            fetch(codes, AHEAD, AHEAD + size)
            for j in range(8):
                first = min(j * packed.size, size)
                last = min(first + packed.size, size)
                shift, plane = np.uint32(31 - j), view(codes, first, last)
                _decode(plane, packed, shift, weight, True, view(part, first, last))
        finish(part, rounded, low)


def natural_quantize(
    x: Gradient,
    exponents: U8,
    signs: U8,
    *,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    values, (factor, back) = bits_of(x), factors_of(loss_scale)

    def work(low: int, high: int) -> None:
        key, drawn = noise_key(noise, low), noise_buffer(noise, GROUP)
        assert key is not None
        assert drawn is not None
        _quantize(
            values[low:high],
            None if residual is None else residual[low:high],
            factor,
            back,
            exponents[low:high],
            signs[low // 8 : -(-high // 8)],
            key,
            drawn,
            np.empty(GROUP, np.float32),
        )

    over_slices(x.size, GROUP, work)


def natural_dequantize(
    exponents: U8, signs: U8, out: F32, *, weight: float = 1.0, add: bool = False
) -> None:
    factor = np.float32(weight)

    def work(low: int, high: int) -> None:
        packed = signs[low // 8 : -(-high // 8)]
        _dequantize(exponents[low:high], packed, out[low:high], factor, add)

    over_slices(out.size, GROUP, work)


def sum_natural(
    exponents: Sequence[U8], signs: Sequence[U8], out: Gradient, *, weight: float = 1.0
) -> None:
    factor, like = np.float32(weight), np.empty(0, np.uint8)
    codes, packed = addresses(exponents), addresses(signs)

    def work(low: int, high: int) -> None:
        sums, rounded = room_for_sums(out, GROUP)
        _sum(codes, packed, (low, high), sums, rounded, factor, like)

    over_slices(out.size, GROUP, work)
