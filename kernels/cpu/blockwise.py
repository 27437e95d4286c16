"""Block-wise quantisation for NumPy arrays; see :mod:`compressa.kernels.blockwise`.

A block goes through two loops while it lies in the first-level cache: one adds the residual and
finds the scale (`_feedback.py`), one makes codes and the new residual, and asks memory for the
blocks to come (`_codes.py`). Memory is passed over once, and neither loop has a branch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I8, I64, U8, U32, Gradient
from ..blockwise import Form
from ..philox import Noise
from ..threads import over_slices
from ._careful_codes import SMALL, Offset, decoded, encode_carefully
from ._codes import encode, grid_numbers
from ._feedback import (
    Values,
    factors_of,
    fill_largest,
    fill_largest_and_squares,
    fill_squares,
    room_for_p,
)
from ._grid import CLIPPED, L2, Shape, clipped_grid, grid_of, norm_grid, shape_of
from ._jit import inlined, lean
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._payloads import addresses, at, finish, first_of_sums, room_for_sums
from ._planes import bytes_of, pack_planes, unpack_planes
from ._prefetch import AHEAD, NEAR, fetch
from ._stream import room_to_stream, settle, stream
from ._values import bits_of
from ._view import only_with, view


@inlined
def encode_block(
    p: F32,
    grid: tuple[np.float32, Offset],
    shape: Shape,
    noise: U32 | None,
    residual: F32 | None,
    back: np.float32,
    x: Values,
    left: F32 | None,
    position: int,
    packed: U8,
    bytes_: U8,
) -> None:
    """Codes of a block, with hints to memory for what lies behind ``position`` of x."""
    scale, offset = grid
    above = shape.statistic == CLIPPED and noise is None
    if above or not scale >= SMALL or p.size * shape.bits < 8 * packed.size:
        q = view(bytes_, 0, 8 * packed.size // shape.bits)
        for i in range(p.size, q.size):
            q[i] = np.uint8(shape.zero)
        encode_carefully(p, grid, shape, noise, q, residual, back)
        pack_planes(q, shape.bits, packed)
        return
    numbers = grid_numbers(scale, offset, back, shape, noise)
    encode(shape.bits, p, packed, noise, residual, x, left, position, numbers)


@inlined
def fill_grid(
    now: Values,
    left: F32 | None,
    loss_scale: np.float32,
    p: F32,
    x: Values,
    residual: F32 | None,
    position: int,
    shape: Shape,
) -> tuple[np.float32, np.float32]:
    """Write p of a block, unless that is x itself; return its scale and offset.

    Asks memory for half of what lies in ``x`` and ``residual`` from ``position``.
    """
    if shape.statistic == L2:
        return norm_grid(fill_squares(now, left, loss_scale, p, x, residual, position), shape)
    if shape.statistic == CLIPPED:
        bits, squares = fill_largest_and_squares(now, left, loss_scale, p, x, residual, position)
        return clipped_grid(np.uint32(bits).view(np.float32), squares, p.size, shape)
    return grid_of(p, fill_largest(now, left, loss_scale, p, x, residual, position), shape)


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    back: np.float32,
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    key: Key | None,
    drawn: U32 | None,
    room: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    for b in range(scales.size):
        low, high = b * shape.block, min((b + 1) * shape.block, x.size)
        left = view(residual, low, high)
        now = view(x, low, high)
        p, ahead = view(room_for_p(now, left, room), 0, now.size), low + NEAR
        scale, offset = fill_grid(now, left, loss_scale, p, x, residual, ahead, shape)
        scales[b] = scale
        if offsets is not None:
            offsets[b] = offset
        at = drawn_at(key, low, high, drawn)
        noise = view(drawn, at, at + high - low)
        start, stop = bytes_of(low, shape.bits), bytes_of(high, shape.bits)
        fetch(codes, start + bytes_of(NEAR, shape.bits), stop + bytes_of(NEAR, shape.bits))
        encode_block(
            p,
            (scale, only_with(offsets, offset)),
            shape,
            noise,
            left,
            back,
            x,
            residual,
            ahead + shape.block // 2,
            view(codes, start, stop),
            bytes_,
        )


@inlined
def _decode(
    q: U8 | I8,
    zero: np.float32,
    grid: tuple[np.float32, Offset],
    weight: np.float32,
    add: bool,
    out: F32,
) -> None:
    scale, offset = grid
    if add:
        for i in range(out.size):
            out[i] += weight * decoded(np.float32(np.float32(q[i]) - zero), scale, offset)
    else:
        for i in range(out.size):
            out[i] = weight * decoded(np.float32(np.float32(q[i]) - zero), scale, offset)


@inlined
def decode_block(
    codes: U8,
    signed: I8,
    scale: np.float32,
    offset: Offset,
    weight: np.float32,
    add: bool,
    out: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Decode the codes of a block, which are given as bytes without a sign and with one."""
    zero, grid = np.float32(shape.zero), (scale, offset)
    if shape.bits == 8 and offset is None:
        _decode(signed, zero, grid, weight, add, out)
    elif shape.bits == 8:
        _decode(codes, zero, grid, weight, add, out)
    else:
        unpack_planes(codes, shape.bits, bytes_)
        _decode(bytes_, zero, grid, weight, add, out)


@lean
def _dequantize(
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    out: F32,
    weight: np.float32,
    add: bool,
    bytes_: U8,
    room: F32,
    shape: Shape,
) -> None:
    """Blocks are made in ``room``, if there is any, and go to ``out`` past the cache."""
    signed, past = codes.view(np.int8), room.size > 0
    for b in range(scales.size):
        low, high = b * shape.block, min((b + 1) * shape.block, out.size)
        start, stop = bytes_of(low, shape.bits), bytes_of(high, shape.bits)
        part = view(out, low, high)
        if not past:
            fetch(out, low + AHEAD, high + AHEAD)
        decode_block(
            view(codes, start, stop),
            view(signed, start, stop),
            scales[b],
            only_with(offsets, np.float32(0) if offsets is None else offsets[b]),
            weight,
            add,
            view(room, 0, high - low) if past else part,
            bytes_,
            shape,
        )
        if past:
            stream(room, part)
    if past:
        settle()


@inlined
def add_blocks(
    codes: I64,
    scales: I64,
    offsets: I64 | None,
    low: int,
    out: F32,
    weight: np.float32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Add the block that begins at element ``low`` of each payload.

    The payloads' codes, scales and offsets are given by the addresses where they begin.
    """
    signed, at_scale = bytes_.view(np.int8), 4 * (low // shape.block)
    start = bytes_of(low, shape.bits)
    size = bytes_of(low + out.size, shape.bits) - start
    for i in range(codes.size):
        packed = at(bytes_, codes[i] + start, size)
        fetch(packed, AHEAD, AHEAD + size)
        decode_block(
            packed,
            at(signed, codes[i] + start, size),
            at(out, scales[i] + at_scale, 1)[0],
            only_with(
                offsets, np.float32(0) if offsets is None else at(out, offsets[i] + at_scale, 1)[0]
            ),
            weight,
            True,
            out,
            bytes_,
            shape,
        )


@lean
def _sum(
    codes: I64,
    scales: I64,
    offsets: I64 | None,
    elems: tuple[int, int],
    sums: F32,
    rounded: Values | None,
    weight: np.float32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """Blocks from element low to high; arrays are given by the addresses where they begin."""
    for low in range(elems[0], elems[1], shape.block):
        high = min(low + shape.block, elems[1])
        at_sums = first_of_sums(rounded, low)
        part = view(sums, at_sums, at_sums + high - low)
        part[:] = np.float32(0)
        add_blocks(codes, scales, offsets, low, part, weight, bytes_, shape)
        finish(part, rounded, low)


class Quantizer:
    """Quantises the same arrays, as often as it is called; see `quantize_blockwise`."""

    __slots__ = ("_arrays", "_block", "_shape", "_values")

    def __init__(
        self, x: Gradient, codes: U8, scales: F32, form: Form, offsets: F32 | None, left: F32 | None
    ) -> None:
        self._values, self._arrays = bits_of(x), (codes, scales, offsets, left)
        self._shape, self._block = shape_of(form), form.block

    def __call__(self, noise: Noise | None, loss_scale: float) -> None:
        """Quantise."""
        values, shape, block = self._values, self._shape, self._block
        codes, scales, offsets, left = self._arrays
        factor, back = np.float32(loss_scale), factors_of(loss_scale)[1]

        def work(low: int, high: int) -> None:
            blocks = slice(low // block, -(-high // block))
            _quantize(
                values[low:high],
                None if left is None else left[low:high],
                factor,
                back,
                codes[low * shape.bits // 8 : -(-high * shape.bits // 8)],
                scales[blocks],
                None if offsets is None else offsets[blocks],
                None if noise is None else noise_key(noise, low),
                None if noise is None else noise_buffer(noise, block),
                np.empty(block, np.float32),
                np.empty(block + 8, np.uint8),
                shape,
            )

        over_slices(values.size, block, work)


def quantize_blockwise(
    x: Gradient,
    codes: U8,
    scales: F32,
    *,
    form: Form,
    offsets: F32 | None = None,
    noise: Noise | None = None,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    Quantizer(x, codes, scales, form, offsets, residual)(noise, loss_scale)


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
    Dequantizer(form)(codes, scales, offsets, out, weight, add)


class Dequantizer:
    """Decodes, as often as it is called; see `dequantize_blockwise`."""

    __slots__ = ("_shape",)

    def __init__(self, form: Form) -> None:
        self._shape = shape_of(form)

    def __call__(
        self, codes: U8, scales: F32, offsets: F32 | None, out: F32, weight: float, add: bool
    ) -> None:
        """Decode, or add."""
        factor, shape, block = np.float32(weight), self._shape, self._shape.block

        def work(low: int, high: int) -> None:
            blocks = slice(low // block, -(-high // block))
            packed = codes[low * shape.bits // 8 : -(-high * shape.bits // 8)]
            some = None if offsets is None else offsets[blocks]
            bytes_, part = np.empty(block + 8, np.uint8), out[low:high]
            room = np.empty(0, np.float32) if add else room_to_stream(part, block)
            _dequantize(packed, scales[blocks], some, part, factor, add, bytes_, room, shape)

        over_slices(out.size, block, work)


def sum_blockwise(
    codes: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    form: Form,
    offsets: Sequence[F32] | None = None,
    weight: float = 1.0,
) -> None:
    least = None if offsets is None else addresses(offsets)
    Summation(out, form)(addresses(codes), addresses(scales), least, weight)


class Summation:
    """Sums payloads to the same array; their arrays are given by the addresses where they begin."""

    __slots__ = ("_out", "_shape")

    def __init__(self, out: Gradient, form: Form) -> None:
        self._out, self._shape = out, shape_of(form)

    def __call__(self, codes: I64, scales: I64, offsets: I64 | None, weight: float) -> None:
        """Write the weighted sum."""
        out, shape, factor = self._out, self._shape, np.float32(weight)

        def work(low: int, high: int) -> None:
            sums, rounded = room_for_sums(out, shape.block)
            bytes_ = np.empty(shape.block + 8, np.uint8)
            _sum(codes, scales, offsets, (low, high), sums, rounded, factor, bytes_, shape)

        over_slices(out.size, shape.block, work)
