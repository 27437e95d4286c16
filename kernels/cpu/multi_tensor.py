"""Many vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._arrays import U8, Gradient
from ..blockwise import Form
from ..multi_tensor import BlockForm, BlockwiseParts, BlockwiseVector, BlockwiseVectors
from ..onebit import SignForm
from ..philox import Noise
from ._payloads import addresses
from .blockwise import Quantizer, Summation, dequantize_blockwise
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


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    if batch.prepared is None:
        batch.prepared = [_summation(part.out, batch.form) for part in batch.parts]
    begins = addresses(payloads)
    for part, add_up in zip(batch.parts, batch.prepared, strict=True):
        offsets = None if part.offsets is None else begins + part.offsets
        add_up(begins + part.codes, begins + part.scales, offsets, weight)


def _summation(out: Gradient, form: BlockForm) -> Summation | SignSummation:
    return Summation(out, form) if isinstance(form, Form) else SignSummation(out, form.block)


def multi_tensor_dequantize(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    form = batch.form
    for part in batch.parts:
        codes, scales, offsets = part.arrays(payload, form)
        whole = part.out.dtype == np.float32
        out = part.out if whole else np.empty(part.out.size, np.float32)
        if isinstance(form, SignForm):
            sign_dequantize(codes, scales, out, block=form.block, weight=weight, add=add)
        else:
            dequantize_blockwise(
                codes, scales, out, form=form, offsets=offsets, weight=weight, add=add
            )
        if not whole:
            narrow(out, part.out)
