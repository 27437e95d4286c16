"""Scaled signs for NumPy arrays; see :mod:`compressa.kernels.onebit`.

A block goes through three loops while it lies in the first-level cache: one adds the residual and
sums, one packs signs, one makes the new residual and asks memory for the blocks to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core import types

from .._arrays import F32, I64, U8, Gradient
from ..threads import over_slices
from ._feedback import Values, factors_of, fill_magnitudes, room_for_p
from ._jit import inlined, intrinsic, lean
from ._payloads import addresses, at, finish, first_of_sums, room_for_sums
from ._planes import SIGN, pack_short, pack_whole
from ._prefetch import AHEAD, fetch
from ._values import bits_of
from ._vector import Memory, for_rows, hints_of, spread
from ._view import view

_SIGN = 0x80000000
_PIECE = 1024  # elements of a plane that stay in the first-level cache with their signs


@intrinsic
def keep_lost(
    typing: Any, p: Any, residual: Any, scale: Any, back: Any, x: Any, left: Any, position: Any
) -> Any:
    """What signs leave behind; hints for half a block."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = Memory(context, builder, p, arguments[0])
        kept = Memory(context, builder, residual, arguments[1])

        def row(at: Any, lanes: int) -> None:
            value = values.read(at, lanes)
            magnitude = spread(builder, arguments[2], lanes).words()
            decoded = (((value + 0.0).words() & _SIGN) | magnitude).as_floats()
            kept.write(at, (value - decoded) * spread(builder, arguments[3], lanes))

        for_rows(
            builder, values.size, row, hints_of(context, builder, signature, arguments, rows=2)
        )
        return context.get_dummy_value()

    return types.void(p, residual, scale, back, x, left, position), generate


@lean
def _quantize(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
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
        p = view(room_for_p(now, left, room), 0, now.size)
        packed = view(bits, low // 8, (high + 7) // 8)
        total = fill_magnitudes(now, left, loss_scale, p, x, residual, high)
        if not np.isfinite(total):
            scales[b] = np.float32(np.nan)
            packed[:] = np.uint8(0)
            continue
        scales[b] = np.float32(total / (high - low))
        if p.size == 8 * packed.size:
            pack_whole(p, packed, x, residual, high + block // 4)
        else:
            pack_short(p, packed)
        if residual is not None:
            keep_lost(p, left, scales[b], back, x, residual, high + block // 2)


@inlined
def decode_plane(bits: U8, shift: np.uint32, value: np.float32, add: bool, out: F32) -> None:
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
            decode_plane(packed, shift, value, add, view(out, first, last))


@lean
def _sum(
    bits: I64,
    scales: I64,
    elems: tuple[int, int],
    sums: F32,
    rounded: Values | None,
    block: int,
    weight: np.float32,
    like: U8,
) -> None:
    """Blocks from element low to high; arrays are given by the addresses where they begin."""
    for low in range(elems[0], elems[1], block):
        high = min(low + block, elems[1])
        width, at_scale = (high - low + 7) // 8, 4 * (low // block)
        for j in range(8):
            plane, shift = low + j * width, np.uint32(31 - j)
            end = min(plane + width, high)
            for first in range(plane, end, _PIECE):
                last = min(first + _PIECE, end)
                start, at_sums = low // 8 + first - plane, first_of_sums(rounded, first)
                part = view(sums, at_sums, at_sums + last - first)
                part[:] = np.float32(0)
                for i in range(bits.size):
                    value = np.float32(weight * at(sums, scales[i] + at_scale, 1)[0])
                    packed = at(like, bits[i] + start, last - first)
                    decode_plane(packed, shift, value, True, part)
                finish(part, rounded, first)


def sign_quantize(
    x: Gradient,
    bits: U8,
    scales: F32,
    *,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    values, (factor, back) = bits_of(x), factors_of(loss_scale)

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
    factor = np.float32(weight)

    def work(low: int, high: int) -> None:
        packed = bits[low // 8 : -(-high // 8)]
        some = scales[low // block : -(-high // block)]
        _dequantize(packed, some, out[low:high], block, factor, add)

    over_slices(out.size, block, work)


def sum_signs(
    bits: Sequence[U8],
    scales: Sequence[F32],
    out: Gradient,
    *,
    block: int,
    weight: float = 1.0,
) -> None:
    SignSummation(out, block)(addresses(bits), addresses(scales), None, weight)


class SignSummation:
    """As `blockwise.Summation`, of signs, which have no offsets."""

    __slots__ = ("_block", "_out")

    def __init__(self, out: Gradient, block: int) -> None:
        self._out, self._block = out, block

    def __call__(self, bits: I64, scales: I64, offsets: I64 | None, weight: float) -> None:
        """Write the weighted sum."""
        out, block = self._out, self._block
        factor, like = np.float32(weight), np.empty(0, np.uint8)

        def work(low: int, high: int) -> None:
            sums, rounded = room_for_sums(out, _PIECE)
            _sum(bits, scales, (low, high), sums, rounded, block, factor, like)

        over_slices(out.size, block, work)
