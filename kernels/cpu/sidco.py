"""SIDCo for NumPy arrays; see :mod:`compressa.kernels.sidco`."""

from __future__ import annotations

from .._arrays import F32, U32, Gradient
from ..sidco import fitted_threshold
from ._listing import Listing, guessed, mark, threshold_bits


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
    hint = guessed(x, residual, scale, indices.size)
    listing = Listing(x, residual, scale, hint, "magnitudes")
    if not listing.finite:
        return mark(indices, values)

    def count(threshold: float) -> int:
        return listing.count(threshold_bits(threshold))

    def measure(threshold: float) -> tuple[int, float]:
        return listing.measure(threshold_bits(threshold))

    sizes = x.size, listing.total, listing.largest
    threshold = fitted_threshold(k, stages, *sizes, count, measure)
    return listing.choose(indices.size, threshold_bits(threshold), (indices, values))
