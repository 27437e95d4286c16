"""Many vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor`.

Small vectors are taken by one compiled call, which a table tells where they lie (`_rows.py`); each
large one by a call of its own, which threads may share. What is the same in every step is worked
out in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._arrays import I64, U8, array_at
from ..blockwise import Form
from ..multi_tensor import (
    BlockForm,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
)
from ..onebit import SignForm
from ..philox import Noise
from . import _rows
from ._feedback import factors_of
from ._grid import shape_of
from ._noise import noise_buffer, noise_key
from ._payloads import addresses
from ._rows import (
    BYTES,
    FLOATS,
    address_of,
    divided,
    is_small,
    offsets_like,
    part_row,
    room_for,
    row_of,
    table,
)
from ._stream import LEAST_ELEMS
from ._values import bits_of
from ._vector import LANES
from .blockwise import Dequantizer, Quantizer, Summation
from .casts import narrow
from .onebit import SignSummation, sign_dequantize, sign_quantize


class _Quantizers:
    """What quantises a list of vectors."""

    def __init__(self, batch: BlockwiseVectors) -> None:
        vectors, form = batch.vectors, batch.form
        kept = {vector.residual is None for vector in vectors}
        small, large = divided(vectors, lambda v: len(kept) == 1 and is_small(v.x))
        self._small, self._large = small, large
        self._form, self._offsets = form, offsets_like(form)
        self._shape = shape_of(form) if isinstance(form, Form) else None
        self._alone = [(vectors[i], _quantizer(vectors[i], form)) for i in large]
        self._rows = table(row_of(vectors[i]) for i in small)
        if small:
            first = vectors[small[0]]
            self._x, self._residual = bits_of(first.x), first.residual

    def move(self, addresses: I64) -> None:
        """Have the values lie elsewhere."""
        _rows.move(self._rows, addresses[self._small])
        for number, i in enumerate(self._large):
            vector = self._alone[number][0]
            vector = vector._replace(x=array_at(int(addresses[i]), vector.x))
            self._alone[number] = vector, _quantizer(vector, self._form)

    def __call__(self, noise: Noise | None, loss_scale: float) -> None:
        for vector, quantize in self._alone:
            quantize(None if noise is None else vector.noise(noise), loss_scale)
        if not self._rows.size:
            return
        block = self._form.block
        room = np.empty(block, np.float32)
        given = self._rows, self._x, self._residual, factors_of(loss_scale), BYTES, FLOATS
        if self._shape is None:
            _rows.quantize_sign_rows(*given, room, block)
            return
        shared = None if noise is None else Noise(*noise[:3], parameter=0)
        drawn = noise_key(shared, 0), noise_buffer(shared, block)
        bytes_ = np.empty(block + 8, np.uint8)
        _rows.quantize_rows(*given, self._offsets, *drawn, room, bytes_, self._shape)


def _quantizer(vector: BlockwiseVector, form: BlockForm) -> Callable[[Noise | None, float], None]:
    """What quantises a vector in each step."""
    x, codes, scales, offsets, residual, *_ = vector
    if isinstance(form, Form):
        return Quantizer(x, codes, scales, form, offsets, residual)

    def quantize(noise: Noise | None, loss_scale: float) -> None:
        sign_quantize(x, codes, scales, block=form.block, residual=residual, loss_scale=loss_scale)

    return quantize


def multi_tensor_quantize(
    batch: BlockwiseVectors, *, noise: Noise | None = None, loss_scale: float = 1.0
) -> None:
    quantize = batch.prepared = batch.prepared or _Quantizers(batch)
    quantize(noise, loss_scale)


class _Sums:
    """What decodes the parts of payloads, and what adds them up."""

    def __init__(self, batch: BlockwiseParts) -> None:
        form = self._form = batch.form
        self._offsets = offsets_like(form)
        self._shape = shape_of(form) if isinstance(form, Form) else None
        float32 = all(part.out.dtype == np.float32 for part in batch.parts)
        small, large = divided(batch.parts, lambda part: float32 and is_small(part.out))
        self._small, self._large = small, large
        self._rows = table(part_row(batch.parts[i]) for i in small)
        self._alone = [_Part(batch.parts[i], form) for i in large]
        self._elems = sum(batch.parts[i].out.size for i in small)

    def move(self, addresses: I64) -> None:
        """Decode to elsewhere."""
        _rows.move(self._rows, addresses[self._small])
        for number, i in enumerate(self._large):
            part = self._alone[number].part
            out = array_at(int(addresses[i]), part.out)
            self._alone[number] = _Part(part._replace(out=out), self._form)

    def add_up(self, payloads: Sequence[U8], weight: float) -> None:
        """Write the weighted sum."""
        begins, factor, block = addresses(payloads), np.float32(weight), self._form.block
        for part in self._alone:
            part.add_up(begins, weight)
        if not self._rows.size:
            return
        codes, scales, offsets = room_for(begins, self._offsets)
        given = self._rows, begins, codes, scales
        if self._shape is None:
            _rows.sum_sign_rows(*given, FLOATS, factor, BYTES, block)
        else:
            bytes_ = np.empty(block + 8, np.uint8)
            _rows.sum_rows(*given, offsets, FLOATS, factor, bytes_, self._shape)

    def decode(self, payload: U8, weight: float, add: bool) -> None:
        """Decode a payload, or add it."""
        for part in self._alone:
            part.decode(payload, weight, add)
        if not self._rows.size:
            return
        form, given = self._form, (self._rows, address_of(payload), BYTES, FLOATS)
        how = np.float32(weight), add
        if self._shape is None:
            _rows.dequantize_sign_rows(*given, *how, form.block)
        else:
            bytes_ = np.empty(form.block + 8, np.uint8)
            long = not add and self._elems >= LEAST_ELEMS and form.block % LANES == 0
            room = np.empty(form.block if long else 0, np.float32)
            _rows.dequantize_rows(*given, self._offsets, *how, bytes_, room, self._shape)


class _Part:
    """A large part of payloads, or one of 16 bits."""

    def __init__(self, part: BlockwisePart, form: BlockForm) -> None:
        self.part, self._form = part, form
        self._sum: Summation | SignSummation = (
            Summation(part.out, form)
            if isinstance(form, Form)
            else SignSummation(part.out, form.block)
        )

    def add_up(self, begins: I64, weight: float) -> None:
        """Write the sum of payloads that begin at addresses."""
        part = self.part
        offsets = None if part.offsets is None else begins + part.offsets
        self._sum(begins + part.codes, begins + part.scales, offsets, weight)

    def decode(self, payload: U8, weight: float, add: bool) -> None:
        """Decode a payload's, or add it."""
        form, out = self._form, self.part.out
        codes, scales, offsets = self.part.arrays(payload, form)
        whole = out.dtype == np.float32
        values = out if whole else np.empty(out.size, np.float32)
        if isinstance(form, SignForm):
            sign_dequantize(codes, scales, values, block=form.block, weight=weight, add=add)
        else:
            Dequantizer(form)(codes, scales, offsets, values, weight, add)
        if not whole:
            narrow(values, out)


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    sums = batch.prepared = batch.prepared or _Sums(batch)
    sums.add_up(payloads, weight)


def multi_tensor_dequantize(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    sums = batch.prepared = batch.prepared or _Sums(batch)
    sums.decode(payload, weight, add)
