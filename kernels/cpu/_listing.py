"""Listing: one look at q, after which a choice among its large elements costs little.

What is compared is q (`_unscaled.py`). A guess at the smallest magnitude that will be
chosen comes from a sample. One pass makes the new residual and lists the candidates, which are at
least as large as the guess (`_candidates.py`). If there are enough of them, the exact choice is
among the few. Otherwise a histogram of the whole vector says where the choice ends, and a second
pass lists from there. So the guess decides how long it takes, and never what is chosen.

The vector is cut into pieces, by its length alone, each with a list of its own. Threads share the
pieces, and the lists are joined in the order of the pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._arrays import F32, I64, U32, Gradient
from ..scratch import scratch
from ..threads import over_slices
from . import _candidates as candidates
from ._append import LARGEST
from ._candidates import BLOCK, NOTES, Entries, Lists
from ._feedback import Factors, factors_of
from ._rank import guess, nth_largest, sample_size
from ._sums import Sums, add_in_order
from ._unscaled import INFINITY
from ._values import bits_of

LEAST_PIECE = 1 << 16
_PIECES = 64
_PAGE = 4096  # elements of a piece's list, beside what is expected
_CROWDED = 8  # how many times the average of candidates a piece may have
_FEW = 1 << 16  # candidates among which one thread chooses sooner than several
_BUCKET_BITS = 11
_BUCKETS = 1 << _BUCKET_BITS
_SHIFTS = 20, 9, 0


class Source(NamedTuple):
    """What q is made of, and where it is left; ``x`` is None if the residual holds it already."""

    x: Any
    residual: F32 | None
    factors: Factors


class Guess(NamedTuple):
    """Magnitude bits that hardly any of the chosen fall short of; and two more hints.

    Attributes:
        least: Those bits.
        likely: Bits that most of the chosen do not reach.
        expected: How many elements are expected to reach ``least``.
    """

    least: int
    likely: int
    expected: int


class _Cut(NamedTuple):
    """How the vector is cut into pieces."""

    elems: int
    piece: int

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return -(-self.elems // self.piece)

    @property
    def ends(self) -> I64:
        """Where the pieces end."""
        ends = np.arange(self.piece, self.elems + self.piece, self.piece)
        ends[-1:] = self.elems
        return ends

    def over(self, work: Callable[[int, int], None]) -> None:
        """Call ``work(low, high)`` on ranges of elements that cover whole pieces."""
        over_slices(self.elems, self.piece, work)

    def numbers(self, low: int, high: int) -> tuple[int, int]:
        """The pieces of a range of elements."""
        return low // self.piece, -(-high // self.piece)


def source_of(x: Gradient, residual: F32 | None, loss_scale: float) -> Source:
    """Return what the kernels make q of."""
    return Source(bits_of(x), residual, factors_of(loss_scale))


def guessed(x: Gradient, residual: F32 | None, loss_scale: float, k: int) -> Guess:
    """Return a guess at the magnitude of the k-th largest."""
    sample = scratch("listing.sample", sample_size(x.size), np.float32)
    return Guess(*guess(*source_of(x, residual, loss_scale), k, sample))


def room_for(elems: int) -> Entries:
    """Return room for candidates."""
    indices = scratch("listing.indices", elems, np.uint32)
    return indices, scratch("listing.values", elems, np.float32)


def room_for_sums(elems: int, bases: U32) -> Sums:
    """Return room for what is added up on the way."""
    blocks, rows = -(-elems // BLOCK), max(bases.size, 1)
    sums = scratch("listing.sums", rows * blocks, np.float64).reshape(rows, blocks)
    reached = scratch("listing.reached", rows * blocks, np.int64).reshape(rows, blocks)
    return sums, bases, reached


def added_up(measured: Sums) -> list[tuple[int, float]]:
    """Return, for each base, what the blocks' numbers and sums, first to last, come to."""
    sums, _, reached = measured
    return [add_in_order(*rows) for rows in zip(reached, sums, strict=True)]


class Listing:
    """Candidates of one call, made in a pass that leaves q in the residual.

    What is not finite leaves the residual as it was; if there is any, so does element 0, and there
    is nothing to choose from.

    Args:
        x: The vector.
        residual: Added to it; receives what is not chosen.
        loss_scale: The loss scale.
        hint: Where candidates begin.
        bases: Magnitude bits; what reaches each is counted and added up on the way. If there are
            none, all squares are added up. Or None.
    """

    def __init__(
        self,
        x: Gradient,
        residual: F32 | None,
        loss_scale: float,
        hint: Guess,
        bases: U32 | None = None,
    ) -> None:
        self._source, self._loss_scale = source_of(x, residual, loss_scale), np.float32(loss_scale)
        piece = max(LEAST_PIECE, -(-x.size // _PIECES))
        self._cut = cut = _Cut(x.size, -(-piece // BLOCK) * BLOCK)
        self._least, self._likely = hint.least, hint.likely
        self._measured = None if bases is None else room_for_sums(x.size, bases)
        room = min(cut.piece, _CROWDED * hint.expected // max(cut.pieces, 1) + _PAGE)
        # As much as a call of this size ever needs, whatever the data are.
        self._counts = scratch("listing.counts", cut.pieces * _BUCKETS, np.int64)
        self._room = max(cut.pieces * room, 2 * hint.expected + _FEW + cut.pieces * BLOCK)
        before = residual[:1].copy() if residual is not None else None
        self._lists = self._list(cut.ends, np.arange(0, cut.pieces * room + 1, room))
        self._found, full, self.top = candidates.summary(self._lists[2])
        self._whole = not full
        if residual is not None:
            self._source = self._source._replace(x=None)
            if not self.finite:
                residual[:1] = before

    @property
    def finite(self) -> bool:
        """Whether all of q is."""
        return self.top < INFINITY

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return float(np.uint32(self.top).view(np.float32))

    @property
    def sums(self) -> list[tuple[int, float]]:
        """How many elements reach each base, and the sum of their magnitudes; or of squares."""
        assert self._measured is not None
        return added_up(self._measured)

    def count(self, threshold: int, enough: int | None = None) -> int:
        """How many elements reach some magnitude bits.

        Args:
            threshold: The bits.
            enough: Where there are more than that, any larger number will do.
        """
        if self._whole and threshold >= self._least:
            return int(candidates.count_listed(self._lists, np.uint32(threshold)))
        if self._whole and enough is not None and self._found > enough:
            return self._found
        counts: list[int] = []

        def work(low: int, high: int) -> None:
            bounds, bits = (low, high), np.uint32(threshold)
            counts.append(int(candidates.count_all(*self._source, bounds, bits)))

        over_slices(self._cut.elems, BLOCK, work)
        return sum(counts)

    def choose(self, most: int, floor: int, out: Entries) -> int:
        """Choose the ``most`` largest that reach ``floor``; ties go to the lowest index.

        Args:
            most: How many at most; no more than there are elements.
            floor: Magnitude bits.
            out: Receives the indices in order, and the values times the loss scale.

        Returns:
            How many were chosen.
        """
        enough = self._found >= most or self._least <= floor
        if not (self._whole and enough):
            self._list_exactly(most, floor)
        return self._deliver(*self._boundary(most, floor), out)

    def _list(self, ends: I64, begins: I64) -> Lists:
        """List the candidates of all pieces; those from ``ends`` on must be above the least."""
        notes = np.zeros((self._cut.pieces, NOTES), np.int64)
        lists, least = (room_for(self._room), begins, notes), np.uint32(self._least)

        def work(low: int, high: int) -> None:
            bounds = low, high, self._cut.piece
            candidates.list_pieces(*self._source, bounds, least, ends, self._measured, lists)

        self._cut.over(work)
        return lists

    def _boundary(self, most: int, floor: int) -> tuple[int, int]:
        """The smallest magnitude to be chosen, and how many of those that have it."""
        found = self._found if floor <= self._least else self.count(floor)
        if found <= most:
            return floor, found
        if most == 0:
            return INFINITY, 0
        above, least, last = 0, self._least, LARGEST
        if found > _FEW:
            shift = max(0, max(0, self._likely - least).bit_length() - _BUCKET_BITS)
            bucket, above = self._bucket(most, shift)
            least += bucket << shift
            if bucket < _BUCKETS - 1:
                last = least + (1 << shift) - 1
        few = scratch("listing.few", self._room, np.uint32)
        their = scratch("listing.few values", self._room, np.float32)
        inside = candidates.gather(self._lists, least, last, (few, their))
        threshold, more = nth_largest(their[:inside], most - above)
        return threshold, most - above - more

    def _bucket(self, most: int, shift: int) -> tuple[int, int]:
        """The bucket of magnitudes that the last to be chosen is in, and how many are above it."""
        counts = self._counts.reshape(-1, _BUCKETS)

        def work(low: int, high: int) -> None:
            numbers = self._cut.numbers(low, high)
            candidates.tally(self._lists, numbers, self._least, shift, counts)

        self._cut.over(work)
        return _descend(counts.sum(axis=0), most)

    def _deliver(self, threshold: int, ties: int, out: Entries) -> int:
        """Write the chosen; return how many."""
        pieces, bits, residual = self._cut.pieces, np.uint32(threshold), self._source.residual
        cuts, offsets = np.empty(pieces, np.int64), np.empty(pieces + 1, np.int64)
        candidates.cut_lists(self._lists, bits, ties, cuts, offsets)

        def work(low: int, high: int) -> None:
            numbers = self._cut.numbers(low, high)
            chosen = bits, cuts, offsets, self._loss_scale
            candidates.emit(self._lists, numbers, *chosen, residual, out)

        self._cut.over(work)
        return int(offsets[-1])

    def _list_exactly(self, most: int, floor: int) -> None:
        """List little more than is chosen, having looked at all magnitudes first."""
        ends, self._measured, self._least = self._cut.ends, None, floor
        rooms = ends  # of a single piece, which can list all that it has
        if self._cut.pieces > 1:
            above, inside, least, shift = self._survey(most)
            if shift == 0 and least >= floor:
                inside = self._share_ties(inside, most - int(above.sum()), least, ends)
            self._least = max(least, floor)
            rooms = above + inside
        # A list counts as full where a whole block might not fit.
        self._lists = self._list(ends, np.concatenate(([0], np.cumsum(rooms + BLOCK))))
        self._found, _, _ = candidates.summary(self._lists[2])
        self._whole = True

    def _survey(self, most: int) -> tuple[I64, I64, int, int]:
        """Where the choice ends, as exactly as it takes to list not many more than are chosen.

        Returns:
            For each piece how many lie above a bucket and how many in it; the bucket's smallest
            magnitude, and the logarithm of its width.
        """
        counts, least = self._counts.reshape(-1, _BUCKETS), 0
        above = np.zeros(self._cut.pieces, np.int64)
        for shift in _SHIFTS:
            window = least, shift

            def work(low: int, high: int, window: tuple[int, int] = window) -> None:
                bounds = low, high, self._cut.piece
                candidates.histogram(*self._source, bounds, *window, counts)

            self._cut.over(work)
            bucket, _ = _descend(counts.sum(axis=0), most - int(above.sum()))
            # Row by row: for rows of a part of each, NumPy 2.1 buffers 96 KiB.
            above += [row[bucket + 1 :].sum() for row in counts]
            least += bucket << shift
            inside = counts[:, bucket].copy()
            if above.sum() + inside.sum() <= max(2 * most, _FEW):
                break
        return above, inside, least, shift

    def _share_ties(self, equal: I64, ties: int, threshold: int, ends: I64) -> I64:
        """Give ties to the first pieces that have them; move the end of what may be chosen.

        Returns:
            How many each piece gets.
        """
        before = np.cumsum(equal) - equal
        taken: I64 = np.clip(ties - before, 0, equal)
        ends[(taken == 0) & (equal > 0)] = 0
        for number in np.flatnonzero((taken > 0) & (taken < equal)):
            begin, first = int(number) * self._cut.piece, int(taken[number])
            ends[number] = candidates.end_of_ties(*self._source, begin, threshold, first)
        return taken


def _descend(counts: I64, rank: int) -> tuple[int, int]:
    """The bucket that has the element of this rank (the first one if none has), and those above."""
    from_top = np.cumsum(counts[::-1])
    steps = min(int(np.searchsorted(from_top, rank)), counts.size - 1)
    return counts.size - 1 - steps, int(from_top[steps - 1]) if steps else 0


def threshold_bits(threshold: float) -> int:
    """The magnitude bits that float32 has of a threshold, which is not below 0."""
    with np.errstate(over="ignore"):
        return int(np.float32(abs(threshold)).view(np.uint32))


def mark(indices: U32, values: F32) -> int:
    """What a selection of no fixed size finds where something is not finite: a NaN, if it has room.

    Returns:
        How many it finds.
    """
    indices[:1], values[:1] = 0, np.nan
    return min(indices.size, 1)
