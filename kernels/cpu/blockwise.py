"""Block-wise quantisation for NumPy arrays; see :mod:`compressa.kernels.blockwise`.

A block goes through two loops while it lies in the first-level cache: one adds the residual and
finds the unit, one makes codes and the new residual, and asks memory for the blocks to come.
Memory is passed over once. Every loop is free of branches, so that LLVM vectorises it.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8, U16, Gradient
from ..blockwise import Form
from ..philox import Noise
from ..threads import over_slices
from ._feedback import Values, fill, fill_largest, inverse, place
from ._grid import CLIPPED, L2, Shape, grid_of, norm_grid, shape_of
from ._jit import inlined, lean
from ._nibbles import pack_planes, unpack_planes
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._prefetch import AHEAD, fetch
from ._values import bits_of
from ._view import view

_SMALL = np.float32(2.0**-100)
_LIFT = np.float32(2.0**64)
_ONE = np.float32(1)
# Adding 1.5 * 2**23 leaves no bits for a fraction, so the sum is rounded half to even, and its last
# bits are the integer in two's complement. Unlike rint, this vectorises.
_ROUNDER = np.float32(12582912.0)
_STEPS = np.float32(32768)  # 127 times that still is below 2**22, which _ROUNDER takes
_FLOOR = np.float32(8388608.0)  # the same for numbers from 0 to 2**23, without a sign
Offset = np.float32 | None

_ROW = 256  # elements between two rounds of hints to memory


@lean
def _stochastic(
    t: np.float32, noise: np.uint16, rounder: np.float32, bottom: np.int32, top: np.int32
) -> np.int32:
    """The integer plus the base of the limits: fixed point with 15 bits, plus noise, cut off."""
    fixed = np.float32(t * _STEPS + rounder).view(np.int32)
    q = np.int32(np.int32(fixed + np.int32(noise)) >> np.int32(15))
    return np.int32(min(max(q, bottom), top))


@lean
def _decoded(q: np.float32, unit: np.float32, offset: np.float32 | None) -> np.float32:
    if offset is None:
        return np.float32(q * unit)
    return np.float32(q * unit + offset)


@lean
def _shifted(p: np.float32, offset: np.float32 | None) -> np.float32:
    return p if offset is None else np.float32(p - offset)


@lean
def _lifted(p: np.float32, offset: np.float32 | None, lift: np.float32) -> np.float32:
    if offset is None:
        return np.float32(p * lift)
    return np.float32(p * lift - offset * lift)


@inlined
def _encode(
    p: F32,
    grid: tuple[np.float32, Offset],
    shape: Shape,
    noise: U16 | None,
    q: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    """Turn p into codes, a byte each, and keep what they leave behind."""
    unit, offset = grid
    factor = np.float32(_ONE / unit)
    rounder = np.float32(_ROUNDER + np.float32(shape.zero))  # zero is even: ties stay ties
    fine = _FLOOR if shape.bottom == 0 else _ROUNDER
    base = np.int32(np.int32(np.float32(fine).view(np.int32)) >> np.int32(15))
    bottom, top = np.int32(base + shape.bottom), np.int32(base + shape.top)
    zero = np.int32(shape.zero - base)
    for i in range(p.size):
        t = np.float32(_shifted(p[i], offset) * factor)
        if noise is None:
            rounded = np.float32(t + rounder)
            q[i] = np.uint8(np.float32(rounded).view(np.uint32))
            integer = np.float32(rounded - rounder)
        else:
            whole = _stochastic(t, noise[i], fine, bottom, top)
            q[i] = np.uint8(np.int32(whole + zero))
            integer = np.float32(np.int32(whole - base))
        if residual is not None:
            residual[i] = (p[i] - _decoded(integer, unit, offset)) * back


@lean
def _encode_carefully(
    p: F32,
    grid: tuple[np.float32, Offset],
    shape: Shape,
    noise: U16 | None,
    q: U8,
    residual: F32 | None,
    back: np.float32,
) -> None:
    """The same for units so small that 1 / unit might overflow, and for values above L units.

    Where the unit is 0 or NaN all codes are 0.
    """
    unit, offset = grid
    lift = _LIFT if unit < _SMALL else _ONE
    factor = np.float32(_ONE / np.float32(unit * lift))
    for i in range(p.size):
        whole = np.int64(0)
        if unit > np.float32(0):
            t = np.float32(_lifted(p[i], offset, lift) * factor)
            if noise is None:
                whole = np.int64(np.float32(np.float32(t + _ROUNDER) - _ROUNDER))
            else:
                fixed = np.round(np.float64(t * _STEPS))
                whole = (np.int64(fixed) + np.int64(noise[i])) >> 15
            whole = min(max(whole, np.int64(shape.bottom)), np.int64(shape.top))
        q[i] = np.uint8(whole + shape.zero)
        if residual is not None and unit >= np.float32(0):
            residual[i] = (p[i] - _decoded(np.float32(whole), unit, offset)) * back


@inlined
def _encode_block(
    p: F32,
    grid: tuple[np.float32, Offset],
    shape: Shape,
    noise: U16 | None,
    q: U8,
    residual: F32 | None,
    back: np.float32,
    x: Values,
    left: F32 | None,
    position: int,
    codes: U8,
    ahead: int,
) -> None:
    """Codes of a block, with hints to memory for what lies behind ``position`` of x."""
    above = shape.statistic == CLIPPED and noise is None
    if above or not grid[0] >= _SMALL:
        _encode_carefully(p, grid, shape, noise, q, residual, back)
        return
    fetch(codes, ahead, ahead + p.size // (8 // shape.bits))
    for low in range(0, p.size, _ROW):
        high = min(low + _ROW, p.size)
        fetch(x, position + low, position + high)
        fetch(left, position + low, position + high)
        now, bits = view(residual, low, high), view(noise, low, high)
        _encode(view(p, low, high), grid, shape, bits, view(q, low, high), now, back)


@lean
def _if_any(offsets: F32 | None, offset: np.float32) -> Offset:
    """The offset, or None where there are none: then no loop adds it."""
    if offsets is None:
        return None
    return offset


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    scale: np.float32,
    back: np.float32,
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    key: Key | None,
    drawn: U16 | None,
    room: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    each = 8 // shape.bits
    for b in range(scales.size):
        low, high = b * shape.block, min((b + 1) * shape.block, x.size)
        left = view(residual, low, high)
        now = view(x, low, high)
        p = view(place(now, left, room), 0, now.size)
        if shape.statistic == L2:
            fill(now, left, scale, p)
            unit, offset = norm_grid(p, shape)
        else:
            unit, offset = grid_of(p, fill_largest(now, left, scale, p), shape)
        scales[b] = unit
        if offsets is not None:
            offsets[b] = offset
        at = drawn_at(key, low, high, drawn)
        noise = view(drawn, at, at + high - low)
        packed = view(codes, low // each, (high + each - 1) // each)
        q = packed if each == 1 else view(bytes_, 0, each * packed.size)
        for i in range(high - low, q.size):
            q[i] = np.uint8(shape.zero)
        grid = unit, _if_any(offsets, offset)
        _encode_block(
            p,
            grid,
            shape,
            noise,
            q,
            left,
            back,
            x,
            residual,
            low + AHEAD,
            codes,
            (low + AHEAD) // each,
        )
        if each > 1:
            pack_planes(q, shape.bits, packed)


@inlined
def _decode(
    q: U8,
    zero: np.float32,
    grid: tuple[np.float32, Offset],
    weight: np.float32,
    add: bool,
    out: F32,
) -> None:
    unit, offset = grid
    if add:
        for i in range(out.size):
            out[i] += weight * _decoded(np.float32(np.float32(q[i]) - zero), unit, offset)
    else:
        for i in range(out.size):
            out[i] = weight * _decoded(np.float32(np.float32(q[i]) - zero), unit, offset)


@lean
def _dequantize(
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    out: F32,
    weight: np.float32,
    add: bool,
    bytes_: U8,
    shape: Shape,
) -> None:
    each = 8 // shape.bits
    signed, zero = codes.view(np.int8), np.float32(shape.zero)
    for b in range(scales.size):
        low, high = b * shape.block, min((b + 1) * shape.block, out.size)
        grid = scales[b], _if_any(offsets, np.float32(0) if offsets is None else offsets[b])
        part = view(out, low, high)
        fetch(out, low + AHEAD, high + AHEAD)
        if shape.bits == 8 and offsets is None:
            _decode(view(signed, low, high), zero, grid, weight, add, part)
        elif each == 1:
            _decode(view(codes, low, high), zero, grid, weight, add, part)
        else:
            packed = view(codes, low // each, (high + each - 1) // each)
            q = view(bytes_, 0, each * packed.size)
            unpack_planes(packed, shape.bits, q)
            _decode(q, zero, grid, weight, add, part)


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.blockwise.quantize_blockwise`."""
    values, shape, back = bits_of(x), shape_of(form), inverse(scale)

    def work(low: int, high: int) -> None:
        blocks = slice(low // form.block, -(-high // form.block))
        _quantize(
            values[low:high],
            None if residual is None else residual[low:high],
            np.float32(scale),
            back,
            codes[low * form.bits // 8 : -(-high * form.bits // 8)],
            scales[blocks],
            None if offsets is None else offsets[blocks],
            noise_key(noise, low),
            noise_buffer(noise, form.block),
            np.empty(form.block, np.float32),
            np.empty(form.block + 8, np.uint8),
            shape,
        )

    over_slices(x.size, form.block, work)


def dequantize_blockwise(
    codes: U8,
    scales: F32,
    out: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """See :func:`compressa.kernels.blockwise.dequantize_blockwise`."""
    factor, shape = np.float32(weight), shape_of(form)

    def work(low: int, high: int) -> None:
        blocks = slice(low // form.block, -(-high // form.block))
        packed = codes[low * form.bits // 8 : -(-high * form.bits // 8)]
        some = None if offsets is None else offsets[blocks]
        room = np.empty(form.block + 8, np.uint8)
        _dequantize(packed, scales[blocks], some, out[low:high], factor, add, room, shape)

    over_slices(out.size, form.block, work)
