"""The mean of scaled signs for NumPy arrays; see :mod:`compressa.kernels.blockwise_mean`.

A block goes through all of it while it lies in the first-level cache.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U8
from ._feedback import fill_magnitudes
from ._jit import inlined, lean
from ._mean import keep_where_infinite, own_share, with_none_left
from ._payloads import at
from ._planes import pack_short, pack_whole
from ._prefetch import AHEAD, fetch
from ._view import view
from .onebit import decode_plane, keep_lost

_ONE = np.float32(1)


@inlined
def _decode_block(bits: U8, value: np.float32, add: bool, out: F32) -> None:
    """All planes of a block; ``value`` is its scale times the weight."""
    for j in range(8):
        first = min(j * bits.size, out.size)
        last = min(first + bits.size, out.size)
        decode_plane(bits, np.uint32(31 - j), value, add, view(out, first, last))


@lean
def average_signs(
    x: F32,
    sent_bits: I64,
    sent_scales: I64,
    bits: U8,
    scales: F32,
    residual: F32 | None,
    kept: F32 | None,
    factors: tuple[np.float32, np.float32, np.float32],
    block: int,
    room: F32,
) -> None:
    """All blocks of x; what was sent is given by the addresses where its arrays begin."""
    loss_scale, weight, back = factors
    for b in range(scales.size):
        low, high = b * block, min((b + 1) * block, x.size)
        now, left, saved = view(x, low, high), view(residual, low, high), view(kept, low, high)
        p, packed = view(room, 0, high - low), view(bits, low // 8, (high + 7) // 8)
        fetch(kept, low + AHEAD, high + AHEAD)
        own_share(now, left, saved, loss_scale, weight, p)
        for i in range(sent_bits.size):
            theirs = at(bits, sent_bits[i] + low // 8, packed.size)
            _decode_block(theirs, np.float32(weight * at(x, sent_scales[i] + 4 * b, 1)[0]), True, p)
        with_none_left(p, left)
        total = fill_magnitudes(p, None, _ONE, p, x, residual, high)
        finite = np.isfinite(total)
        scale = np.float32(total / (high - low)) if finite else np.float32(np.nan)
        scales[b] = scale
        if not finite:
            packed[:] = np.uint8(0)
        elif p.size == 8 * packed.size:
            pack_whole(p, packed, x, residual, high + block // 4)
        else:
            pack_short(p, packed)
        if residual is not None and finite:
            keep_lost(p, left, scale, back, x, residual, high + block // 2)
        keep_where_infinite(p, scale, left, saved)
        _decode_block(packed, scale, False, now)
