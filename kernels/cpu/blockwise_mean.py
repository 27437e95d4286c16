"""The mean of quantised values for NumPy arrays; see :mod:`compressa.kernels.blockwise_mean`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, I64, U8, array_at
from ..blockwise import Form
from ..blockwise_mean import BlockwiseMeans, Owned, Packed
from ..multi_tensor import BlockwiseVector
from ..onebit import SignForm
from ..philox import Noise
from ..threads import over_slices
from . import _rows
from ._feedback import factors_of
from ._grid import shape_of
from ._mean import Addresses
from ._mean import average as _average
from ._noise import noise_buffer, noise_key
from ._payloads import addresses
from ._rows import (
    BYTES,
    FLOATS,
    divided,
    is_small,
    offsets_like,
    part_row,
    room_for,
    row_of,
    table,
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
        codes, own_scales, offsets = self._mean
        factors = np.float32(scales[0]), np.float32(weight), factors_of(scales[1])[1]

        def work(low: int, high: int) -> None:
            blocks = slice(low // block, -(-high // block))
            _average(
                x[low:high],
                sent,
                low,
                codes[low * shape.bits // 8 : -(-high * shape.bits // 8)],
                own_scales[blocks],
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


class _Averages:
    """What averages a list of vectors."""

    def __init__(self, means: BlockwiseMeans) -> None:
        vectors, parts, kept = means.vectors.vectors, means.parts.parts, means.kept
        form = self._form = means.form
        self._offsets = offsets_like(form)
        self._shape = shape_of(form) if isinstance(form, Form) else None
        small, large = divided(vectors, lambda v: isinstance(form, SignForm) or is_small(v.x))
        self._small, self._large, self._kept = small, large, kept
        self._alone = [
            (vectors[i], parts[i], _whole(vectors[i], form, kept[i]))
            for i in large
            if isinstance(form, Form)
        ]
        self._rows = table(row_of(vectors[i], kept[i]) for i in small)
        self._sent = table(part_row(parts[i]) for i in small)
        self._residual = vectors[small[0]].residual if small else None

    def move(self, addresses: I64) -> None:
        """Have the own values lie elsewhere."""
        _rows.move(self._rows, addresses[self._small])
        for number, i in enumerate(self._large):
            vector, part, _ = self._alone[number]
            vector = vector._replace(x=array_at(int(addresses[i]), vector.x))
            assert isinstance(self._form, Form)  # signs go all in one call
            self._alone[number] = vector, part, _whole(vector, self._form, self._kept[i])

    def __call__(
        self, sent: Sequence[U8], weight: float, noise: Noise | None, scales: tuple[float, float]
    ) -> None:
        begins, block = addresses(sent), self._form.block
        for vector, part, average in self._alone:
            offsets = None if part.offsets is None else begins + part.offsets
            theirs = begins + part.codes, begins + part.scales, offsets
            average(theirs, weight, None if noise is None else vector.noise(noise), scales)
        if not self._rows.size:
            return
        theirs = room_for(begins, self._offsets)
        given = self._rows, self._sent, begins
        factors = np.float32(scales[0]), np.float32(weight), factors_of(scales[1])[1]
        room = np.empty(block, np.float32)
        if self._shape is None:
            signed = *given, theirs[:2], FLOATS, BYTES, self._residual, factors, room, block
            _rows.average_sign_rows(*signed)
            return
        _rows.average_rows(
            *given,
            theirs,
            FLOATS,
            BYTES,
            self._offsets,
            self._residual,
            factors,
            noise_key(noise, 0),
            noise_buffer(noise, block),
            room,
            np.empty(block + 8, np.uint8),
            self._shape,
        )


def _whole(vector: BlockwiseVector, form: Form, kept: F32 | None) -> Average:
    x, codes, scales, offsets, residual, *_ = vector
    return Average(x, Packed(codes, scales, offsets), form, residual, kept)


def average_vectors(
    means: BlockwiseMeans,
    sent: Sequence[U8],
    *,
    weight: float,
    noise: Noise | None = None,
    loss_scale: float = 1.0,
    mean_loss_scale: float = 1.0,
) -> None:
    average = means.prepared = means.prepared or _Averages(means)
    average(sent, weight, noise, (loss_scale, mean_loss_scale))
