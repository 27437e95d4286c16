"""Many vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._arrays import U8, Gradient, block_count
from ..blockwise import Form
from ..multi_tensor import (
    BlockForm,
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
)
from ..philox import Noise
from ._payloads import addresses
from .blockwise import Dequantizer, Quantizer, Summation
from .casts import narrow
from .onebit import SignSummation, sign_dequantize, sign_quantize


def multi_tensor_quantize(
    batch: BlockwiseVectors, *, noise: Noise | None = None, loss_scale: float = 1.0
) -> None:
    if batch.prepared is None:
        batch.prepared = [_quantizer(vector, batch.form) for vector in batch.vectors]
    for vector, quantize in zip(batch.vectors, batch.prepared, strict=True):
        quantize(None if noise is None else vector.noise(noise), loss_scale)


def _quantizer(vector: BlockwiseVector, form: BlockForm) -> Callable[[Noise | None, float], None]:
    """What quantises a vector in each step."""
    x, codes, scales, offsets, residual, *_ = vector
    if isinstance(form, Form):
        return Quantizer(x, codes, scales, form, offsets, residual)

    def quantize(noise: Noise | None, loss_scale: float) -> None:
        sign_quantize(x, codes, scales, block=form.block, residual=residual, loss_scale=loss_scale)

    return quantize


class _Sums:
    """What adds up and what decodes the parts of payloads, worked out once."""

    def __init__(self, batch: BlockwiseParts) -> None:
        form = self._form = batch.form
        self.summations = [_summation(part.out, form) for part in batch.parts]
        self._places = [_places(part, form) for part in batch.parts]
        self._dequantize = Dequantizer(form) if isinstance(form, Form) else None

    def decode(self, payload: U8, outs: Sequence[Gradient], weight: float, add: bool) -> None:
        """Decode a payload, or add it."""
        heads = payload[: payload.size // 4 * 4].view(np.float32)
        for out, (codes, scales, offsets) in zip(outs, self._places, strict=True):
            whole = out.dtype == np.float32
            values = out if whole else np.empty(out.size, np.float32)
            if self._dequantize is None:
                block = self._form.block
                arrays = payload[codes], heads[scales], values
                sign_dequantize(*arrays, block=block, weight=weight, add=add)
            else:
                some = None if offsets is None else heads[offsets]
                self._dequantize(payload[codes], heads[scales], some, values, weight, add)
            if not whole:
                narrow(values, out)


def _summation(out: Gradient, form: BlockForm) -> Summation | SignSummation:
    return Summation(out, form) if isinstance(form, Form) else SignSummation(out, form.block)


def _places(part: BlockwisePart, form: BlockForm) -> tuple[slice, slice, slice | None]:
    """Of codes in bytes; of scales and offsets in float32."""
    n = part.out.size
    blocks, scales = block_count(n, form.block), part.scales // 4
    offsets = None if part.offsets is None else part.offsets // 4
    return (
        slice(part.codes, part.codes + form.code_bytes(n)),
        slice(scales, scales + blocks),
        None if offsets is None else slice(offsets, offsets + blocks),
    )


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    sums = batch.prepared = batch.prepared or _Sums(batch)
    begins = addresses(payloads)
    for part, add_up in zip(batch.parts, sums.summations, strict=True):
        offsets = None if part.offsets is None else begins + part.offsets
        add_up(begins + part.codes, begins + part.scales, offsets, weight)


def multi_tensor_dequantize(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    sums = batch.prepared = batch.prepared or _Sums(batch)
    sums.decode(payload, [part.out for part in batch.parts], weight, add)
