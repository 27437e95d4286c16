"""SIDCo in NumPy; see :mod:`compressa.kernels.sidco`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..sidco import SMALLEST, base_ranks, fitted_threshold, sampled
from ._selection import mark, sample_places, sum_blocks, take_largest, unscaled


def _reaching(sizes: F32, base: float) -> tuple[int, float]:
    """How many are at least as large as a base, and their sum."""
    reach = sizes >= np.float32(base)
    return int(np.count_nonzero(reach)), sum_blocks(np.where(reach, sizes, np.float32(0)))


def _bases(sample: F32, ranks: tuple[int, ...]) -> list[float]:
    """Where the tails of all stages begin."""
    largest_first = np.sort(sample)[::-1]
    return [0.0, *(max(float(largest_first[rank - 1]), SMALLEST) for rank in ranks)]


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
    sizes, threshold, most = np.abs(q), 0.0, 0
    if np.isfinite(q).all():
        sample = sizes[sample_places(q.size, sampled(q.size))]
        bases = _bases(sample, base_ranks(k, q.size, stages))
        reaching = [_reaching(sizes, base) for base in bases]
        largest = float(sizes.max())
        threshold, failed = fitted_threshold(
            k, bases, reaching, largest, lambda t: _reaching(sizes, t)[0]
        )
        most = min(k, indices.size) if failed else indices.size
    found = take_largest(q, most, threshold, indices, values, residual, scale)
    return found if found >= 0 else mark(indices, values)
