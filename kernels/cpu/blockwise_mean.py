"""The mean of quantised values for NumPy arrays; see :mod:`compressa.kernels.blockwise_mean`.

Made of the loops of `blockwise`, for a block at a time, which memory gives and takes once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I64, U8, U32
from ..blockwise import Form
from ..blockwise_mean import Owned, Packed
from ..philox import Noise
from ..threads import over_slices
from ._feedback import effective, factors_of, magnitude_bits
from ._grid import Shape, shape_of
from ._jit import inlined, lean
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._payloads import addresses
from ._planes import bytes_of
from ._prefetch import AHEAD, NEAR, fetch
from ._view import only_with, view
from .blockwise import add_blocks, decode_block, encode_block, fill_grid

_INFINITY = np.uint32(0x7F800000)
_ONE = np.float32(1)
Addresses = tuple[I64, I64, I64 | None]


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
def _average(
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


class Average:
    """Averages the same values, as often as it is called; see `average_blockwise`."""

    __slots__ = ("_arrays", "_block", "_mean", "_shape")

    def __init__(
        self, x: F32, mean: Packed, form: Form, residual: F32 | None, kept: F32 | None
    ) -> None:
        self._mean, self._arrays = mean, (x, residual, kept)
        self._shape, self._block = shape_of(form), form.block

    def __call__(
        self, sent: Addresses, weight: float, noise: Noise | None, scales: tuple[float, float]
    ) -> None:
        """Average.

        Args:
            sent: Where the arrays of the others' payloads begin.
            weight: As `average_blockwise` takes it.
            noise: The same.
            scales: The loss scale, and the mean's.
        """
        (x, residual, kept), shape, block = self._arrays, self._shape, self._block
        codes, units, offsets = self._mean
        factors = np.float32(scales[0]), np.float32(weight), factors_of(scales[1])[1]

        def work(low: int, high: int) -> None:
            blocks = slice(low // block, -(-high // block))
            _average(
                x[low:high],
                sent,
                low,
                codes[low * shape.bits // 8 : -(-high * shape.bits // 8)],
                units[blocks],
                None if offsets is None else offsets[blocks],
                None if residual is None else residual[low:high],
                None if kept is None else kept[low:high],
                factors,
                noise_key(noise, low),
                noise_buffer(noise, block),
                np.empty(block, np.float32),
                np.empty(block + 8, np.uint8),
                shape,
            )

        over_slices(x.size, block, work)


def average_blockwise(
    x: F32,
    sent: Sequence[Packed],
    mean: Packed,
    *,
    form: Form,
    weight: float,
    noise: Noise | None = None,
    owned: Owned | None = None,
) -> None:
    residual, kept, *scales = owned or (None, None, 1.0, 1.0)
    offsets = [packed.offsets for packed in sent if packed.offsets is not None]
    begins = (
        addresses([packed.codes for packed in sent]),
        addresses([packed.scales for packed in sent]),
        None if mean.offsets is None else addresses(offsets),
    )
    Average(x, mean, form, residual, kept)(begins, weight, noise, (scales[0], scales[1]))
