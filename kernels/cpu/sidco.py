"""SIDCo for NumPy arrays; see :mod:`compressa.kernels.sidco`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .._arrays import F32, U32, Gradient
from ..scratch import scratch
from ..sidco import (
    TOLERANCE,
    base_ranks,
    fitted_threshold,
    most_counted,
    sampled,
    stage_threshold,
)
from ._candidates import BLOCK, Entries
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
from ._rank import guess_from, largest_of, nth_largest, sample_stretches
from ._selection import begin, finish, reaching
from ._sums import add_in_order
from ._unscaled import INFINITY
from ._view import only_without

_stage_threshold = nested(stage_threshold)


@lru_cache
def _ranks(k: int, size: int, stages: int) -> U32:
    """Of each stage's base in the sample; the first stage has none."""
    return np.array([0, *base_ranks(k, size, stages)], np.uint32)


@jit
def _look(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    most: int,
    sample: F32,
    bases: U32,
) -> tuple[int, int, int]:
    """Draw the sample; put magnitudes in the place of ranks, and guess where the choice ends."""
    sample_stretches(x, residual, factors, x.size // sample.size, 0, sample)
    few = sample
    for s in range(1, bases.size):
        bits = nth_largest(few, int(np.int64(bases[s])))[0]
        bases[s], few = max(bits, 1), largest_of(few, bits)
    if sample.size < x.size:
        return guess_from(sample, most, x.size)
    return bases[bases.size // 2], 0, x.size  # hardly a threshold lies below


@jit
def _select_short(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    k: int,
    sample: F32,
    ranks: U32,
    entries: Entries,
    out: Entries,
) -> int:
    """All in one, for a vector of one piece; -1 if anything is not finite."""
    most, bases, shape = out[0].size, ranks.copy(), (ranks.size, (x.size - 1) // BLOCK + 1)
    sums, numbers = np.empty(shape), np.empty(shape, np.int64)
    measured = sums, bases, numbers
    count = 0
    least = _look(x, residual, factors, most, sample, bases)[0]
    found, top = begin(x, residual, factors, least, measured, entries)
    if top >= INFINITY:
        return -1
    again = only_without(residual, x)
    largest, floor = np.float64(np.uint32(top).view(np.float32)), 1
    for s in range(bases.size):
        above, total = add_in_order(numbers[s], sums[s])
        if s and above <= k:
            break
        base = np.float64(bases[s : s + 1].view(np.float32)[0])
        threshold = _stage_threshold(k, base, above, total, largest)
        floor = int(np.int64(magnitude_bits(np.float32(threshold))))
        if floor < least:
            least, found = floor, begin(again, residual, factors, floor, None, entries)[0]
        count = reaching(entries[1], found, floor)
        if abs(count - k) <= TOLERANCE * k:
            break
    if found <= k and least > 1:  # what is listed may not be all there are
        least, found = 1, begin(again, residual, factors, 1, None, entries)[0]
    # Of a sample that is mostly zero, zeros are listed, too.
    if k - count > TOLERANCE * k or reaching(entries[1], found, 1) <= k:
        most, floor = min(most, k), 1
    return finish(again, residual, factors, (most, floor, least), found, entries, out)


def select_sidco(
    x: Gradient,
    k: int,
    stages: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    source = source_of(x, residual, loss_scale)
    ranks = _ranks(k, x.size, stages)
    sample = scratch("sidco.sample", sampled(x.size), np.float32)
    if x.size <= LEAST_PIECE:
        room, out = room_for(x.size), (indices, values)
        count = int(_select_short(*source, k, sample, ranks, room, out))
        return count if count >= 0 else mark(indices, values)
    bases = ranks.copy()
    hint = Guess(*_look(*source, indices.size, sample, bases))
    listing = Listing(x, residual, loss_scale, hint, bases)
    if not listing.finite:
        return mark(indices, values)
    enough = most_counted(k)
    threshold, failed = fitted_threshold(
        k,
        [float(base) for base in bases.view(np.float32)],
        listing.sums,
        listing.largest,
        lambda t: listing.count(threshold_bits(t), enough),
    )
    most = min(k, indices.size) if failed else indices.size
    return listing.choose(most, threshold_bits(threshold), (indices, values))
