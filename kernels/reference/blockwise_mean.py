"""The mean of quantised values in NumPy; see :mod:`compressa.kernels.blockwise_mean`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32
from ..blockwise import Form
from ..blockwise_mean import Owned, Packed
from ..philox import Noise
from .blockwise import dequantize_blockwise, quantize_blockwise
from .feedback import absorb_residual


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
    """See :func:`compressa.kernels.blockwise_mean.average_blockwise`."""
    if owned is not None:
        absorb_residual(x, owned.residual, owned.kept, owned.scale)
        owned.residual[:] = 0
    x *= np.float32(weight)
    for codes, scales, offsets in sent:
        dequantize_blockwise(codes, scales, x, form=form, offsets=offsets, weight=weight, add=True)
    quantize_blockwise(
        x,
        mean.codes,
        mean.scales,
        form=form,
        offsets=mean.offsets,
        noise=noise,
        residual=None if owned is None else owned.residual,
        scale=1.0 if owned is None else owned.mean_scale,
    )
    if owned is not None:
        np.copyto(owned.residual, owned.kept, where=~np.isfinite(x))
    dequantize_blockwise(mean.codes, mean.scales, x, form=form, offsets=mean.offsets)
