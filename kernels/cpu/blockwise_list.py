"""Block-wise quantisation of a list on a CPU; see :mod:`compressa.kernels.blockwise_list`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import U8
from ..blockwise_list import BlockwiseList, BlockwiseParts
from ..philox import Noise
from .blockwise import dequantize_blockwise, quantize_blockwise, sum_blockwise
from .casts import narrow


def quantize_blockwise_list(
    batch: BlockwiseList, *, noise: Noise | None = None, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.blockwise_list.quantize_blockwise_list`."""
    for vector in batch.vectors:
        quantize_blockwise(
            vector.x,
            vector.codes,
            vector.scales,
            form=batch.form,
            offsets=vector.offsets,
            noise=vector.noise(noise),
            residual=vector.residual,
            scale=scale,
        )


def sum_blockwise_list(
    batch: BlockwiseParts, payloads: Sequence[U8], *, weight: float = 1.0
) -> None:
    """See :func:`compressa.kernels.blockwise_list.sum_blockwise_list`."""
    for part in batch.parts:
        arrays = [part.arrays(payload, batch.form) for payload in payloads]
        sum_blockwise(
            [codes for codes, _, _ in arrays],
            [scales for _, scales, _ in arrays],
            part.out,
            form=batch.form,
            offsets=[some for _, _, some in arrays if some is not None] or None,
            weight=weight,
        )


def dequantize_blockwise_list(
    batch: BlockwiseParts, payload: U8, *, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.blockwise_list.dequantize_blockwise_list`."""
    for part in batch.parts:
        codes, scales, offsets = part.arrays(payload, batch.form)
        whole = part.out.dtype == np.float32
        out = part.out if whole else np.empty(part.out.size, np.float32)
        dequantize_blockwise(
            codes, scales, out, form=batch.form, offsets=offsets, weight=weight, add=add
        )
        if not whole:
            narrow(out, part.out)
