"""Which magnitude is the n-th largest: exactly in a list, and by a sample in a long vector.

Magnitudes order as the integers that their bits are. A histogram of the list's own range tells the
bucket that the n-th largest lies in, and those of the bucket are gone through again.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64
from ._append import LARGEST
from ._feedback import Factors, Values, effective, magnitude_bits
from ._jit import jit, lean, lean_nested, nested
from ._prefetch import prefetch

_BITS, _FEW_BITS = 11, 8
_FEW = 1 << 12  # values for which fewer buckets are quicker, and a copy is small
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
_LEAST_SAMPLE, _MOST_SAMPLE = 1 << 10, 1 << 15
_ELEMS_PER_SAMPLE = 1 << 6
_DEVIATIONS = 4.0  # so many deviations too low, a guess is too high once in ten thousand calls
_AHEAD = 32


@nested
def _range(values: F32) -> tuple[int, int]:
    low, high = np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(values.size):
        magnitude = magnitude_bits(values[i])
        low, high = min(low, magnitude), max(high, magnitude)
    return int(np.int64(low)), int(np.int64(high))


@nested
def _count(values: F32, low: int, high: int, shift: int, counts: I64) -> None:
    counts[:] = 0
    for i in range(values.size):
        magnitude = np.int64(magnitude_bits(values[i]))
        if low <= magnitude <= high:
            counts[(magnitude - low) >> shift] += 1


@nested
def _between(values: F32, low: int, high: int, count: int) -> F32:
    """The so many from ``low`` to ``high``, if they are few; else all values.

    Without a branch for each: there is room for one more. A call may not ask for much memory.
    """
    if count > _FEW:
        return values
    room, found = np.empty(count + 1, np.float32), 0
    for i in range(values.size):
        magnitude = np.int64(magnitude_bits(values[i]))
        room[found] = values[i]
        found += int(low <= magnitude <= high)
    return room[:found]


@nested
def largest_of(values: F32, least: int) -> F32:
    """Those that reach some magnitude bits, if they are few: the largest of these are sooner found.

    Else all values.
    """
    count = int(np.int64(0))  # a literal would be compiled for, too
    for i in range(values.size):
        count += int(np.int64(magnitude_bits(values[i])) >= least)
    return _between(values, least, int(np.int64(LARGEST)), count)


@jit
def nth_largest(values: F32, rank: int) -> tuple[int, int]:
    """The magnitude bits that have this rank (1: the largest), and how many are larger."""
    counts = np.zeros(1 << (_FEW_BITS if values.size <= _FEW else _BITS), np.int64)
    low, high = _range(values)
    above = 0
    while True:
        shift = 0
        while (high - low) >> shift >= counts.size:
            shift += 1
        _count(values, low, high, shift, counts)
        bucket = (high - low) >> shift
        while above + counts[bucket] < rank:
            above += counts[bucket]
            bucket -= 1
        low += bucket << shift
        high = low + (1 << shift) - 1
        if shift == 0:
            return low, above
        values = _between(values, low, high, counts[bucket])


@jit
def sample_size(size: int) -> int:
    """How many elements a guess looks at; none where it would not be worth it."""
    if size < 4 * _LEAST_SAMPLE:
        return 0
    return min(max(size // _ELEMS_PER_SAMPLE, _LEAST_SAMPLE), _MOST_SAMPLE)


@lean_nested
def _sampled_index(stretch: int, size: int) -> int:
    """One index in a stretch of a vector, by a sequence without a period that both may share."""
    word = np.uint64(np.uint64(stretch) * _SPREAD) >> np.uint64(32)
    return stretch * size + int(np.int64(word * np.uint64(size) >> np.uint64(32)))


@lean
def sample_stretches(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    size: int,
    first: int,
    sample: F32,
) -> None:
    """One element of q from each stretch of ``size`` elements, from stretch ``first`` on."""
    if size == 1:
        for i in range(sample.size):
            sample[i] = effective(x, residual, factors[0], first + i) * factors[1]
        return
    for i in range(sample.size):
        ahead = _sampled_index(first + min(i + _AHEAD, sample.size - 1), size)
        prefetch(x, ahead)
        if residual is not None:
            prefetch(residual, ahead)
        index = _sampled_index(first + i, size)
        sample[i] = effective(x, residual, factors[0], index) * factors[1]


@jit
def guess(
    x: Values, residual: F32 | None, factors: Factors, k: int, sample: F32
) -> tuple[int, int, int]:
    """A magnitude that is hardly ever larger than the k-th largest of q.

    Args:
        x: The vector that q is made of.
        residual: What is added to it.
        factors: The loss scale, and one over it.
        k: Which one is asked for.
        sample: Room for the sample; without any the answer is 0.

    Returns:
        Its bits; those of a larger one that few of the k exceed; and how many elements of q
        are expected to reach the first.
    """
    if sample.size == 0:
        return 0, 0, x.size
    sample_stretches(x, residual, factors, x.size // sample.size, 0, sample)
    return guess_from(sample, k, x.size)


@nested
def guess_from(sample: F32, k: int, size: int) -> tuple[int, int, int]:
    """The same, by a sample of ``size`` elements that is there already."""
    expected = k * sample.size / size
    rank = int(expected + _DEVIATIONS * np.sqrt(expected) + _DEVIATIONS)
    if rank >= sample.size:
        return 0, 0, size
    low, _ = nth_largest(sample, rank)
    high, _ = nth_largest(largest_of(sample, low), max(1, rank // 4))
    return low, high, int(rank / sample.size * size)
