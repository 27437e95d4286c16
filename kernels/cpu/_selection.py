"""The largest elements above a floor, exactly, in one pass over memory where a guess is good.

A guess at the smallest magnitude that will be chosen comes from a sample. One pass makes the new
residual and lists the candidates, which are at least as large as the guess (`_candidates.py`). If
there are enough of them, the exact choice is among the few. Otherwise a histogram of the whole
vector says where the choice ends, and a second pass lists from there. So the guess decides how
long it takes, and never what is chosen.

The vector is cut into pieces, by its length alone, each with a list of its own. Threads share the
pieces, and the lists are joined in the order of the pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._arrays import F32, I64, U32, Gradient
from ..scratch import scratch
from ..threads import over_slices
from . import _candidates as candidates
from ._append import LARGEST
from ._candidates import FOUND, FULL, NONFINITE, NOTES, Entries, Factors, Lists
from ._feedback import Values, inverse
from ._jit import jit
from ._rank import guess, nth_largest, sample_size
from ._values import bits_of

_PIECES = 64
_LEAST_PIECE = 1 << 16
_PAGE = 4096  # elements of a piece's list, beside what is expected
_CROWDED = 8  # how many times the average of candidates a piece may have
_FEW = 1 << 16  # candidates among which one thread chooses sooner than several
_BUCKET_BITS = 11
_BUCKETS = 1 << _BUCKET_BITS
_SHIFTS = 20, 9, 0
_INFINITY = 0x7F800000


class _Source(NamedTuple):
    """What q is made of, and where it is left; no ``x`` if the residual holds it already."""

    x: Values | None
    residual: F32 | None
    factors: Factors


class _Cut(NamedTuple):
    """How the vector is cut into pieces."""

    elems: int
    piece: int

    @property
    def count(self) -> int:
        """Number of pieces."""
        return -(-self.elems // self.piece)

    @property
    def ends(self) -> I64:
        """Where the pieces end."""
        return np.minimum(np.arange(1, self.count + 1) * self.piece, self.elems)

    def over(self, work: Callable[[int, int], None]) -> None:
        """Call ``work(low, high)`` on ranges of elements that cover whole pieces."""
        over_slices(self.elems, self.piece, work)

    def numbers(self, low: int, high: int) -> tuple[int, int]:
        """The pieces of a range of elements."""
        return low // self.piece, -(-high // self.piece)


def select_largest(
    x: Gradient,
    most: int,
    floor: int,
    indices: U32,
    values: F32,
    residual: F32 | None,
    scale: float,
) -> int:
    """Find the ``most`` largest elements whose magnitude bits are at least ``floor``.

    Ties go to the lowest index, and the result is in the order of the indices. If anything is not
    finite, the residual of element 0 is left as it was, and nothing is written to the result.

    Args:
        x: The vector.
        most: How many at most; no more than there are elements.
        floor: Bits of the smallest magnitude that may be chosen.
        indices: Receives the indices.
        values: Receives the values, times the loss scale.
        residual: Added to the vector; receives what was not chosen.
        scale: The loss scale.

    Returns:
        How many were chosen; -1 if anything is not finite.
    """
    source = _Source(bits_of(x), residual, (np.float32(scale), inverse(scale)))
    sample, out = scratch("select.sample", sample_size(x.size), np.float32), (indices, values)
    if x.size <= _LEAST_PIECE:
        return int(_select_in_one(*source, most, floor, sample, _entries(x.size), out))
    return _select_in_pieces(source, most, floor, sample, out)


def _entries(elems: int) -> Entries:
    indices = scratch("select.indices", elems, np.uint32)
    return indices, scratch("select.values", elems, np.float32)


@jit
def _list_again(
    x: Values, residual: F32 | None, factors: Factors, least: np.uint32, cuts: I64, lists: Lists
) -> None:
    """List the one piece again, from another magnitude on."""
    bounds = 0, x.size, x.size
    if residual is None:
        candidates.list_pieces(x, None, factors, bounds, least, cuts, lists)
    else:
        candidates.put_back(lists, residual)
        candidates.list_pieces(None, residual, factors, bounds, least, cuts, lists)


@jit
def _select_in_one(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    most: int,
    floor: int,
    sample: F32,
    entries: Entries,
    out: Entries,
) -> int:
    """Select in a vector of one piece."""
    first = np.float32(0) if residual is None or x.size == 0 else residual[0]
    notes, offsets = np.zeros((1, NOTES), np.int64), np.zeros(2, np.int64)
    begins, cuts = np.array([0, x.size]), np.array([x.size])
    lists, bounds = (entries, begins, notes), (0, x.size, max(x.size, 1))
    least = max(floor, guess(x, residual, factors, most, sample)[0])
    candidates.list_pieces(x, residual, factors, bounds, np.uint32(least), cuts, lists)
    if notes[0, NONFINITE]:
        if residual is not None:
            candidates.put_back(lists, residual)
            residual[0] = first
        return -1
    if notes[0, FOUND] < most and least > floor:
        _list_again(x, residual, factors, np.uint32(floor), cuts, lists)
    found = notes[0, FOUND]
    threshold, ties = 0, found
    if 0 < most < found:
        threshold, above = nth_largest(entries[1][:found], most)
        ties = most - above
    elif most == 0:
        threshold, ties = _INFINITY, 0
    candidates.cut_lists(lists, np.uint32(threshold), ties, cuts, offsets)
    candidates.emit(lists, (0, 1), np.uint32(threshold), cuts, offsets, factors[0], residual, out)
    return offsets[1]


def _select_in_pieces(source: _Source, most: int, floor: int, sample: F32, out: Entries) -> int:
    """Select in a vector of several pieces."""
    x, residual, factors = source
    low, high, expected = guess(x, residual, factors, most, sample)
    cut, least = _cut_up(source.x.size), max(low, floor)
    room = min(cut.piece, _CROWDED * expected // cut.count + _PAGE)
    begins = np.arange(cut.count + 1) * room
    before = residual[:1].copy() if residual is not None else None
    lists = _list(source, cut, least, cut.ends, begins)
    notes = lists[2]
    if notes[:, NONFINITE].any():
        if residual is not None:
            candidates.put_back(lists, residual)
            residual[:1] = before
        return -1
    enough = notes[:, FOUND].sum() >= most or least == floor
    if notes[:, FULL].any() or not enough:
        lists, least = _list_exactly(source, cut, most, floor, lists)
    threshold, ties = _boundary(lists, cut, most, least, high)
    return _deliver(lists, cut, threshold, ties, source, out)


def _cut_up(elems: int) -> _Cut:
    """Cut a vector into equal pieces of whole blocks."""
    piece = max(_LEAST_PIECE, -(-elems // _PIECES))
    return _Cut(elems, -(-piece // candidates.BLOCK) * candidates.BLOCK)


def _list(source: _Source, cut: _Cut, least: int, ends: I64, begins: I64) -> Lists:
    """List the candidates of all pieces."""
    notes = np.zeros((cut.count, NOTES), np.int64)
    lists, smallest = (_entries(int(begins[-1])), begins, notes), np.uint32(least)

    def work(low: int, high: int) -> None:
        candidates.list_pieces(*source, (low, high, cut.piece), smallest, ends, lists)

    cut.over(work)
    return lists


def _boundary(lists: Lists, cut: _Cut, most: int, least: int, likely: int) -> tuple[int, int]:
    """The smallest magnitude to be chosen, and how many of those that have it.

    Args:
        lists: The candidates.
        cut: The pieces.
        most: How many can be chosen.
        least: A magnitude that no candidate falls short of.
        likely: A magnitude that most of the chosen do not reach.
    """
    found = int(lists[2][:, FOUND].sum())
    if found <= most:
        return 0, found
    if most == 0:
        return _INFINITY, 0
    above, last = 0, LARGEST
    if found > _FEW:
        shift = max(0, max(0, likely - least).bit_length() - _BUCKET_BITS)
        bucket, above = _bucket(lists, cut, most, least, shift)
        least += bucket << shift
        if bucket < _BUCKETS - 1:
            last = least + (1 << shift) - 1
    few = scratch("select.few", found, np.uint32), scratch("select.few values", found, np.float32)
    inside = candidates.gather(lists, least, last, few)
    threshold, more = nth_largest(few[1][:inside], most - above)
    return threshold, most - above - more


def _bucket(lists: Lists, cut: _Cut, most: int, least: int, shift: int) -> tuple[int, int]:
    """The bucket of magnitudes that the last one to be chosen is in, and how many are above it."""
    counts = scratch("select.counts", cut.count * _BUCKETS, np.int64).reshape(-1, _BUCKETS)

    def work(low: int, high: int) -> None:
        candidates.tally(lists, cut.numbers(low, high), least, shift, counts)

    cut.over(work)
    return _descend(counts.sum(axis=0), most)


def _descend(counts: I64, rank: int) -> tuple[int, int]:
    """The bucket that has the element of this rank (the first one if none has), and those above."""
    from_top = np.cumsum(counts[::-1])
    steps = min(int(np.searchsorted(from_top, rank)), counts.size - 1)
    return counts.size - 1 - steps, int(from_top[steps - 1]) if steps else 0


def _deliver(
    lists: Lists, cut: _Cut, threshold: int, ties: int, source: _Source, out: Entries
) -> int:
    """Write the chosen; return how many."""
    cuts, offsets = np.empty(cut.count, np.int64), np.empty(cut.count + 1, np.int64)
    bits, scale = np.uint32(threshold), source.factors[0]
    candidates.cut_lists(lists, bits, ties, cuts, offsets)

    def work(low: int, high: int) -> None:
        numbers = cut.numbers(low, high)
        candidates.emit(lists, numbers, bits, cuts, offsets, scale, source.residual, out)

    cut.over(work)
    return int(offsets[-1])


def _list_exactly(
    source: _Source, cut: _Cut, most: int, floor: int, lists: Lists
) -> tuple[Lists, int]:
    """List little more than is chosen, having looked at all magnitudes first; and from where on."""
    if source.residual is not None:
        candidates.put_back(lists, source.residual)
        source = source._replace(x=None)
    above, inside, least, shift = _survey(source, cut, most)
    ends = cut.ends
    if shift == 0 and least >= floor:
        inside = _share_ties(source, cut, inside, most - int(above.sum()), least, ends)
    # A list counts as full where a whole block might not fit.
    begins = np.concatenate(([0], np.cumsum(above + inside + candidates.BLOCK)))
    least = max(least, floor)
    return _list(source, cut, least, ends, begins), least


def _survey(source: _Source, cut: _Cut, most: int) -> tuple[I64, I64, int, int]:
    """Where the choice ends, as exactly as it takes to list not many more than are chosen.

    Returns:
        For each piece how many lie above a bucket and how many in it; the bucket's smallest
        magnitude, and the logarithm of its width.
    """
    counts = scratch("select.counts", cut.count * _BUCKETS, np.int64).reshape(-1, _BUCKETS)
    above, least = np.zeros(cut.count, np.int64), 0
    for shift in _SHIFTS:
        bounds = least, shift

        def work(low: int, high: int, bounds: tuple[int, int] = bounds) -> None:
            places = low, high, cut.piece
            candidates.histogram(*source, places, *bounds, counts)

        cut.over(work)
        bucket, _ = _descend(counts.sum(axis=0), most - int(above.sum()))
        above += counts[:, bucket + 1 :].sum(axis=1)
        least += bucket << shift
        inside = counts[:, bucket].copy()
        if above.sum() + inside.sum() <= max(2 * most, _FEW):
            break
    return above, inside, least, shift


def _share_ties(
    source: _Source, cut: _Cut, equal: I64, ties: int, threshold: int, ends: I64
) -> I64:
    """Give ties to the first pieces that have them; move the end of what may be chosen.

    Returns:
        How many each piece gets.
    """
    before = np.cumsum(equal) - equal
    taken: I64 = np.clip(ties - before, 0, equal)
    ends[(taken == 0) & (equal > 0)] = 0
    for number in np.flatnonzero((0 < taken) & (taken < equal)):
        begin, first = int(number) * cut.piece, int(taken[number])
        ends[number] = candidates.place_after_ties(*source, begin, threshold, first)
    return taken
