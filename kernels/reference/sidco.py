"""SIDCo in NumPy; see :mod:`compressa.kernels.sidco`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..sidco import fitted_threshold
from ._selection import mark, sum_blocks, take_largest, unscaled


def select_sidco(
    x: Gradient,
    k: int,
    stages: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> int:
    """See :func:`compressa.kernels.sidco.select_sidco`."""
    q = unscaled(x, residual, scale)
    sizes, threshold = np.abs(q), 0.0

    def count(threshold: float) -> int:
        return int(np.count_nonzero(sizes >= np.float32(threshold)))

    def measure(threshold: float) -> tuple[int, float]:
        reaching = np.where(sizes >= np.float32(threshold), sizes, np.float32(0))
        return count(threshold), sum_blocks(reaching)

    if np.isfinite(q).all():
        largest = float(sizes.max())
        threshold = fitted_threshold(k, stages, q.size, sum_blocks(sizes), largest, count, measure)
    found = take_largest(q, indices.size, threshold, indices, values, residual, scale)
    return found if found >= 0 else mark(indices, values)
