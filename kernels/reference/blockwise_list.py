"""Block-wise quantisation of a list in NumPy; see :mod:`compressa.kernels.blockwise_list`."""

from __future__ import annotations

from ..blockwise_list import BlockwiseList
from ..philox import Noise
from .blockwise import quantize_blockwise


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
