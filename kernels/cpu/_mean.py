"""A block of the mean: what `blockwise_mean` and scaled signs have in common, and its integers.

Made of the loops of `blockwise`, for a block at a time, which memory gives and takes once.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U8, U32
from ._feedback import effective, magnitude_bits
from ._grid import Shape
from ._jit import inlined, lean
from ._noise import Key, drawn_at
from ._planes import bytes_of
from ._prefetch import AHEAD, NEAR, fetch
from ._view import only_with, view
from .blockwise import add_blocks, decode_block, encode_block, fill_grid

_INFINITY = np.uint32(0x7F800000)
_ONE = np.float32(1)
Addresses = tuple[I64, I64, I64 | None]
"""Where codes, scales and offsets of each payload begin."""


@inlined
def own_share(
    x: F32, left: F32 | None, saved: F32 | None, loss_scale: np.float32, weight: np.float32, p: F32
) -> None:
    """Write the own share of the mean, and note what to keep if nothing comes of it."""
    back = np.float32(_ONE / loss_scale)
    for i in range(p.size):
        own = effective(x, left, loss_scale, i)
        if left is not None and saved is not None:
            saved[i] = own * back if magnitude_bits(own) < _INFINITY else left[i]
        p[i] = np.float32(own * weight)
    if left is not None:
        left[:] = np.float32(0)


@inlined
def with_none_left(p: F32, left: F32 | None) -> None:
    """Add the residual, which is 0 now: it turns -0 into 0, and all else stays as it is."""
    if left is not None:
        for i in range(p.size):
            p[i] = np.float32(p[i] + left[i])


@inlined
def keep_where_infinite(p: F32, scale: np.float32, left: F32 | None, saved: F32 | None) -> None:
    """Where the mean is spoiled, keep what was saved."""
    if left is not None and saved is not None and scale != scale:
        for i in range(p.size):
            if magnitude_bits(p[i]) >= _INFINITY:
                left[i] = saved[i]


@lean
def average(
    x: F32,
    sent: Addresses,
    first: int,
    codes: U8,
    scales: F32,
    offsets: F32 | None,
    residual: F32 | None,
    kept: F32 | None,
    factors: tuple[np.float32, np.float32, np.float32],
    key: Key | None,
    drawn: U32 | None,
    room: F32,
    bytes_: U8,
    shape: Shape,
) -> None:
    """All blocks of x; the payloads' element ``first`` belongs to its element 0."""
    signed = codes.view(np.int8)
    loss_scale, weight, back = factors
    for b in range(scales.size):
        low, high = b * shape.block, min((b + 1) * shape.block, x.size)
        now, left, saved = view(x, low, high), view(residual, low, high), view(kept, low, high)
        start, stop = bytes_of(low, shape.bits), bytes_of(high, shape.bits)
        packed, p, ahead = view(codes, start, stop), view(room, 0, high - low), low + NEAR
        fetch(kept, low + AHEAD, high + AHEAD)
        own_share(now, left, saved, loss_scale, weight, p)
        add_blocks(*sent, first + low, p, weight, bytes_, shape)
        with_none_left(p, left)
        scale, offset = fill_grid(p, None, _ONE, p, x, residual, ahead, shape)
        scales[b] = scale
        if offsets is not None:
            offsets[b] = offset
        some, at = only_with(offsets, offset), drawn_at(key, low, high, drawn)
        encode_block(
            p,
            (scale, some),
            shape,
            view(drawn, at, at + high - low),
            left,
            back,
            x,
            residual,
            ahead + shape.block // 2,
            packed,
            bytes_,
        )
        keep_where_infinite(p, scale, left, saved)
        decode_block(
            packed, view(signed, start, stop), scale, some, _ONE, False, now, bytes_, shape
        )
