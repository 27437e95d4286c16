"""Natural dithering for NumPy arrays; see :mod:`compressa.kernels.natural_dithering`.

A block is worked on while it lies in the first-level cache: its norm, a byte of code for each
element with the new residual, then the planes.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, U32, Gradient
from ..natural_dithering import Dithering
from ..philox import FRACTION_BITS, Noise
from ..threads import over_slices
from ._feedback import Values, factors_of, fill_largest, room_for_p
from ._jit import inlined, lean, lean_nested
from ._lanes import sum_squares
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._planes import sign_of
from ._values import bits_of
from ._view import view

_LARGEST = float(np.finfo(np.float32).max)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ONE = np.float32(1)
_STEPS = np.float32(2**FRACTION_BITS)  # added to less, it rounds half to even, and vectorises
_MOST = np.float32(1 - 2.0**-FRACTION_BITS)
_BITS = np.uint32(2**FRACTION_BITS - 1)


@lean_nested
def _power(exponent: np.int32) -> np.float32:
    """2**exponent, for a normal number."""
    bits = np.uint32(np.uint32(np.int32(exponent + np.int32(127))) << np.uint32(23))
    return np.float32(np.uint32(bits).view(np.float32))


@lean_nested
def _value(code: np.uint8, levels: np.int32, top: np.uint8, norm: np.float32) -> np.float32:
    """What a code stands for; ``top`` is the bit of the sign."""
    level = np.int32(code & np.uint8(top - np.uint8(1)))
    magnitude = _power(np.int32(level - levels)) if level > 0 else np.float32(0)
    return np.float32((-norm if code & top else norm) * magnitude)


@inlined
def _norm(p: F32, largest: np.float32, euclidean: bool) -> np.float32:
    if not np.isfinite(largest):
        return np.float32(np.nan)
    return np.float32(min(np.sqrt(sum_squares(p)), _LARGEST)) if euclidean else largest


@inlined
def _round(
    p: F32,
    norm: np.float32,
    noise: U32,
    levels: np.int32,
    top: np.uint8,
    q: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    smallest = _power(np.int32(levels - 1))
    below = np.int32(levels - 127)
    for i in range(p.size):
        magnitude = np.uint32(np.float32(p[i]).view(np.uint32) & _MAGNITUDE)
        t = np.float32(np.float32(np.uint32(magnitude).view(np.float32)) / norm)
        bits = np.float32(t).view(np.uint32)
        drawn = np.uint32(noise[i])
        raised = np.uint32(bits + drawn)
        large = np.int32(np.int32(raised >> np.uint32(23)) + below)
        share = np.float32(t * smallest)
        fixed = np.float32(min(share, _MOST) * _STEPS + _STEPS).view(np.uint32)
        # The bits of _STEPS end in zeros: what was added to it is all that is below 2**23.
        small = np.int32(np.uint32(np.uint32(fixed & _BITS) + drawn) >> np.uint32(FRACTION_BITS))
        level = small if share < _ONE else large
        negative = np.uint8(sign_of(p[i]) >> np.uint32(31))
        code = np.uint8(np.uint8(level) | np.uint8(negative * top))
        q[i] = code if level > 0 else np.uint8(0)
        if residual is not None:
            residual[i] = (p[i] - _value(q[i], levels, top, norm)) * back


@inlined
def _keep(p: F32, norm: np.float32, q: U8, residual: F32 | None) -> None:
    """A block of zeros, whose residual is p with its signs; or not finite: that of it stays."""
    for i in range(p.size):
        q[i] = np.uint8(0)
        if residual is not None:
            residual[i] = p[i] if norm == np.float32(0) else residual[i]


@inlined
def _pack(q: U8, bits: int, codes: U8) -> None:
    m = codes.size // bits
    for k in range(bits):
        plane, shift = view(codes, k * m, (k + 1) * m), np.uint8(k)
        for i in range(m):
            plane[i] = np.uint8(np.uint8(q[i] >> shift) & np.uint8(1))
        for j in range(1, 8):
            part, left = view(q, j * m, (j + 1) * m), np.uint8(j)
            for i in range(m):
                bit = np.uint8(np.uint8(part[i] >> shift) & np.uint8(1))
                plane[i] |= np.uint8(bit << left)


@inlined
def _unpack(codes: U8, bits: int, q: U8) -> None:
    m = codes.size // bits
    for j in range(8):
        part, right = view(q, j * m, (j + 1) * m), np.uint8(j)
        for i in range(m):
            part[i] = np.uint8(np.uint8(codes[i] >> right) & np.uint8(1))
        for k in range(1, bits):
            plane, shift = view(codes, k * m, (k + 1) * m), np.uint8(k)
            for i in range(m):
                bit = np.uint8(np.uint8(plane[i] >> right) & np.uint8(1))
                part[i] |= np.uint8(bit << shift)


@lean
def _dither(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    codes: U8,
    norms: F32,
    key: Key,
    drawn: U32,
    room: F32,
    bytes_: U8,
    shape: tuple[int, int, int, bool],
) -> None:
    block, levels, bits, euclidean = shape
    top = np.uint8(1 << (bits - 1))
    for b in range(norms.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left = view(x, low, high), view(residual, low, high)
        p = view(room_for_p(now, left, room), 0, now.size)
        norm = _norm(p, fill_largest(now, left, loss_scale, p, None, None, 0), euclidean)
        norms[b] = norm
        at = drawn_at(key, low, high, drawn)
        packed = view(codes, low // 8 * bits, (high + 7) // 8 * bits)
        q = view(bytes_, 0, 8 * (packed.size // bits))
        for i in range(p.size, q.size):
            q[i] = np.uint8(0)
        if norm > np.float32(0):
            noise = view(drawn, at, at + high - low)
            _round(p, norm, noise, np.int32(levels), top, view(q, 0, p.size), left, back)
        else:
            _keep(p, norm, view(q, 0, p.size), left)
        _pack(q, bits, packed)


@inlined
def _decode(
    q: U8,
    norm: np.float32,
    levels: np.int32,
    top: np.uint8,
    weight: np.float32,
    add: bool,
    out: F32,
) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * _value(q[i], levels, top, norm)
    else:
        for i in range(out.size):
            out[i] = weight * _value(q[i], levels, top, norm)


@lean
def _undither(
    codes: U8,
    norms: F32,
    out: F32,
    weight: np.float32,
    add: bool,
    bytes_: U8,
    shape: tuple[int, int, int, bool],
) -> None:
    block, levels, bits, _ = shape
    top = np.uint8(1 << (bits - 1))
    for b in range(norms.size):
        low, high = b * block, min((b + 1) * block, out.size)
        packed = view(codes, low // 8 * bits, (high + 7) // 8 * bits)
        q = view(bytes_, 0, 8 * (packed.size // bits))
        _unpack(packed, bits, q)
        _decode(q, norms[b], np.int32(levels), top, weight, add, view(out, low, high))


def _shape(form: Dithering) -> tuple[int, int, int, bool]:
    return form.block, form.levels, form.bits, form.norm == "l2"


def dither(
    x: Gradient,
    codes: U8,
    norms: F32,
    *,
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    values, (factor, back) = bits_of(x), factors_of(loss_scale)

    def work(low: int, high: int) -> None:
        key, drawn = noise_key(noise, low), noise_buffer(noise, form.block)
        assert key is not None
        assert drawn is not None
        _dither(
            values[low:high],
            None if residual is None else residual[low:high],
            factor,
            back,
            codes[form.code_bytes(low) : form.code_bytes(high)],
            norms[low // form.block : -(-high // form.block)],
            key,
            drawn,
            np.empty(form.block, np.float32),
            np.empty(form.block, np.uint8),
            _shape(form),
        )

    over_slices(x.size, form.block, work)


def undither(
    codes: U8, norms: F32, out: F32, *, form: Dithering, weight: float = 1.0, add: bool = False
) -> None:
    factor = np.float32(weight)

    def work(low: int, high: int) -> None:
        _undither(
            codes[form.code_bytes(low) : form.code_bytes(high)],
            norms[low // form.block : -(-high // form.block)],
            out[low:high],
            factor,
            add,
            np.empty(form.block, np.uint8),
            _shape(form),
        )

    over_slices(out.size, form.block, work)
