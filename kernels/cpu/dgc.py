"""DGC's selection for NumPy arrays; see :mod:`compressa.kernels.dgc`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..dgc import ADJUSTMENTS, FEWEST, MOST, SMALLEST, adjusted_threshold, lowered, most_selected
from ..scratch import scratch
from ..threads import over_slices
from ._candidates import Entries
from ._feedback import Factors, Values, magnitude_bits
from ._jit import jit, nested
from ._listing import (
    LEAST_PIECE,
    Guess,
    Listing,
    mark,
    room_for,
    source_of,
    threshold_bits,
)
from ._rank import nth_largest, sample_stretches
from ._selection import begin, finish
from ._unscaled import INFINITY
from ._view import only_without

_lowered = nested(lowered)
_OCTAVE = 1 << 23  # in magnitude bits, a factor of two


@jit
def _select_short(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    k: int,
    sample: F32,
    entries: Entries,
    out: Entries,
) -> int:
    """All in one, for a vector of one piece; -1 if anything is not finite."""
    sample_stretches(x, residual, factors, x.size // sample.size, 0, sample)
    bits = nth_largest(sample, -(-k * sample.size // x.size))[0]
    threshold = max(np.float64(np.uint32(bits).view(np.float32)), SMALLEST)
    least = max(bits, 1)
    found, top = begin(x, residual, factors, least, None, entries)
    if top >= INFINITY:
        return -1
    again = only_without(residual, x)
    for _ in range(ADJUSTMENTS):
        if found >= FEWEST * k or threshold == SMALLEST:
            break
        threshold = _lowered(threshold)
        least = int(np.int64(magnitude_bits(np.float32(threshold))))
        found, _ = begin(again, residual, factors, least, None, entries)
    most = min(k if found > MOST * k else int(MOST * k), x.size)
    return finish(again, residual, factors, (most, least, least), found, entries, out)


def select_dgc(
    x: Gradient,
    k: int,
    sample: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    source, drawn = source_of(x, residual, loss_scale), scratch("dgc.sample", sample, np.float32)
    if x.size <= LEAST_PIECE:
        out = indices, values
        count = int(_select_short(*source, k, drawn, room_for(x.size), out))
        return count if count >= 0 else mark(indices, values)

    def work(low: int, high: int) -> None:
        sample_stretches(*source, x.size // sample, low, drawn[low:high])

    over_slices(sample, 1, work)
    rank = -(-k * sample // x.size)
    bits, _ = nth_largest(drawn, rank)
    hint = Guess(max(bits, 1), bits + _OCTAVE, most_selected(k))
    listing = Listing(x, residual, loss_scale, hint)
    if not listing.finite:
        return mark(indices, values)
    first = float(np.uint32(bits).view(np.float32))
    threshold, most = adjusted_threshold(k, first, lambda t: listing.count(threshold_bits(t)))
    return listing.choose(min(most, x.size), threshold_bits(threshold), (indices, values))
