"""DGC's selection in NumPy; see :mod:`compressa.kernels.dgc`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..dgc import adjusted_threshold
from ._selection import mark, sample_places, take_largest, unscaled


def select_dgc(
    x: Gradient,
    k: int,
    sample: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> int:
    """See :func:`compressa.kernels.dgc.select_dgc`."""
    q = unscaled(x, residual, scale)
    sizes, threshold, most = np.abs(q), 0.0, 0
    if np.isfinite(q).all():
        drawn = np.sort(sizes[sample_places(q.size, sample)])[::-1]
        first = float(drawn[-(-k * sample // q.size) - 1])
        threshold, most = adjusted_threshold(
            k, first, lambda t: int(np.count_nonzero(sizes >= np.float32(t)))
        )
    found = take_largest(q, min(most, q.size), threshold, indices, values, residual, scale)
    return found if found >= 0 else mark(indices, values)
