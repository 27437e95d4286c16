"""Many vectors in one call on a CPU; see :mod:`compressa.kernels.multi_tensor`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import U8
from ..multi_tensor import BlockwiseParts, BlockwiseVectors
from ..onebit import SignForm
from ..philox import Noise
from .blockwise import dequantize_blockwise, quantize_blockwise, sum_blockwise
from .casts import narrow
from .onebit import sign_dequantize, sign_quantize, sum_signs


def multi_tensor_quantize(
    batch: BlockwiseVectors, *, noise: Noise | None = None, loss_scale: float = 1.0
) -> None:
    form = batch.form
    for vector in batch.vectors:
        arrays, left = vector[:3], vector.residual
        if isinstance(form, SignForm):
            sign_quantize(*arrays, block=form.block, residual=left, loss_scale=loss_scale)
        else:
            own = vector.noise(noise)
            quantize_blockwise(
                *arrays,
                form=form,
                offsets=vector.offsets,
                noise=own,
                residual=left,
                loss_scale=loss_scale,
            )


def multi_tensor_sum(batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0) -> None:
    form = batch.form
    for part in batch.parts:
        arrays = [part.arrays(payload, form) for payload in payloads]
        codes, scales = [some for some, _, _ in arrays], [some for _, some, _ in arrays]
        offsets = [some for _, _, some in arrays if some is not None] or None
        if isinstance(form, SignForm):
            sum_signs(codes, scales, part.out, block=form.block, weight=weight)
        else:
            sum_blockwise(codes, scales, part.out, form=form, offsets=offsets, weight=weight)


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
