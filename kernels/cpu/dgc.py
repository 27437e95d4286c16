"""DGC's selection for NumPy arrays; see :mod:`compressa.kernels.dgc`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..dgc import adjusted_threshold, most_selected
from ..scratch import scratch
from ..threads import over_slices
from ._listing import Guess, Listing, mark, source_of, threshold_bits
from ._rank import nth_largest, sample_stretches

_OCTAVE = 1 << 23  # in magnitude bits, a factor of two


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
    source, drawn = source_of(x, residual, scale), scratch("dgc.sample", sample, np.float32)

    def work(low: int, high: int) -> None:
        sample_stretches(*source, x.size // sample, low, drawn[low:high])

    over_slices(sample, 1, work)
    rank = -(-k * sample // x.size)
    bits, _ = nth_largest(drawn, rank)
    hint = Guess(max(bits, 1), bits + _OCTAVE, most_selected(k))
    listing = Listing(x, residual, scale, hint)
    if not listing.finite:
        return mark(indices, values)
    first = float(np.uint32(bits).view(np.float32))
    threshold, most = adjusted_threshold(k, first, lambda t: listing.count(threshold_bits(t)))
    return listing.choose(min(most, x.size), threshold_bits(threshold), (indices, values))
