"""Block-wise quantisation of a list on a CPU; see :mod:`compressa.kernels.blockwise_list`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import U8
from ..blockwise_list import BlockwiseList, BlockwiseParts
from ..onebit import SignForm
from ..philox import Noise
from .blockwise import dequantize_blockwise, quantize_blockwise, sum_blockwise
from .casts import narrow
from .onebit import sign_dequantize, sign_quantize, sum_signs


def quantize_blockwise_list(
    batch: BlockwiseList, *, noise: Noise | None = None, scale: float = 1.0
) -> None:
    form = batch.form
    for vector in batch.vectors:
        arrays, left = vector[:3], vector.residual
        if isinstance(form, SignForm):
            sign_quantize(*arrays, block=form.block, residual=left, scale=scale)
        else:
            own = vector.noise(noise)
            quantize_blockwise(
                *arrays, form=form, offsets=vector.offsets, noise=own, residual=left, scale=scale
            )


def sum_blockwise_list(
    batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0
) -> None:
    form = batch.form
    for part in batch.parts:
        arrays = [part.arrays(payload, form) for payload in payloads]
        codes, scales = [some for some, _, _ in arrays], [some for _, some, _ in arrays]
        offsets = [some for _, _, some in arrays if some is not None] or None
        if isinstance(form, SignForm):
            sum_signs(codes, scales, part.out, block=form.block, weight=weight)
        else:
            sum_blockwise(codes, scales, part.out, form=form, offsets=offsets, weight=weight)


def dequantize_blockwise_list(
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
