"""The largest elements above a floor; a vector of one piece is listed without the long one's plan.

`Short` does for a short vector what `Listing` does for a long one, in a compiled call to list it
and another one to choose: a call on a thousand elements is as long as its preparations.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..scratch import scratch
from . import _candidates as candidates
from ._candidates import FOUND, NOTES, TOP, Entries, Lists
from ._feedback import Factors, Values
from ._jit import jit, nested
from ._listing import (
    LEAST_PIECE,
    Guess,
    Listing,
    added_up,
    guessed,
    room_for,
    room_for_sums,
    source_of,
)
from ._rank import guess, nth_largest, sample_size
from ._sums import Sums
from ._unscaled import INFINITY
from ._view import only_without


def select_largest(
    x: Gradient,
    most: int,
    floor: int,
    indices: U32,
    values: F32,
    residual: F32 | None,
    loss_scale: float,
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
        loss_scale: The loss scale.

    Returns:
        How many were chosen; -1 if anything is not finite.
    """
    out = indices, values
    if x.size <= LEAST_PIECE:
        sample = scratch("listing.sample", sample_size(x.size), np.float32)
        source, room = source_of(x, residual, loss_scale), room_for(x.size)
        return int(select_short(*source, most, floor, sample, room, out))
    hint = guessed(x, residual, loss_scale, most)
    listing = Listing(x, residual, loss_scale, hint._replace(least=max(hint.least, floor)))
    return listing.choose(most, floor, out) if listing.finite else -1


def listing_of(
    x: Gradient, residual: F32 | None, loss_scale: float, hint: Guess, bases: U32 | None = None
) -> Short | Listing:
    """Look at q once; see `Listing` for the arguments."""
    kind = Short if x.size <= LEAST_PIECE else Listing
    return kind(x, residual, loss_scale, hint, bases)


class Short:
    """As `Listing`, for a vector of one piece."""

    def __init__(
        self,
        x: Gradient,
        residual: F32 | None,
        loss_scale: float,
        hint: Guess,
        bases: U32 | None = None,
    ) -> None:
        self._source, self._room = source_of(x, residual, loss_scale), room_for(x.size)
        self._least = hint.least
        self._measured = None if bases is None else room_for_sums(x.size, bases)
        self._found, self.top = begin(*self._source, hint.least, self._measured, self._room)
        if residual is not None:
            self._source = self._source._replace(x=None)

    @property
    def finite(self) -> bool:
        """Whether all of q is."""
        return bool(self.top < INFINITY)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return float(np.uint32(self.top).view(np.float32))

    @property
    def sums(self) -> list[tuple[int, float]]:
        """See `Listing.sums`."""
        assert self._measured is not None
        return added_up(self._measured)

    def count(self, threshold: int, enough: int | None = None) -> int:
        """See `Listing.count`."""
        if threshold < self._least:
            if enough is not None and self._found > enough:
                return self._found
            self._found, _ = begin(*self._source, threshold, None, self._room)
            self._least = threshold
        return int(reaching(self._room[1], self._found, threshold))

    def choose(self, most: int, floor: int, out: Entries) -> int:
        """See `Listing.choose`."""
        limits = most, floor, self._least
        return int(finish(*self._source, limits, self._found, self._room, out))


@nested
def _list_of(found: int, entries: Entries, size: int) -> Lists:
    """The list of the only piece."""
    notes = np.zeros((1, NOTES), np.int64)
    notes[0, FOUND] = found
    return entries, np.array([0, size]), notes


@jit
def begin(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    least: int,
    measured: Sums | None,
    entries: Entries,
) -> tuple[int, int]:
    """List what reaches some magnitude bits; return how many, and the largest magnitude."""
    size, note = entries[0].size, np.zeros(NOTES, np.int64)
    first = np.float32(0) if residual is None or size == 0 else residual[0]
    smallest = np.uint32(least)
    candidates.list_part(x, residual, factors, (0, size), smallest, measured, entries, note)
    if note[TOP] >= INFINITY and residual is not None:
        residual[0] = first
    return note[FOUND], note[TOP]


@jit
def reaching(values: F32, found: int, threshold: int) -> int:
    """How many of a list reach a threshold."""
    above, equal = candidates.compare(values[:found], np.uint32(threshold))
    return above + equal


@jit
def finish(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    limits: tuple[int, int, int],
    found: int,
    entries: Entries,
    out: Entries,
) -> int:
    """Choose among what is listed, and list again if that is not enough."""
    most, floor, least = limits
    if found < most and least > floor:
        found, _ = begin(x, residual, factors, floor, None, entries)
        least = floor
    threshold = floor
    ties = found if floor <= least else reaching(entries[1], found, floor)
    if ties > most:
        threshold, above = nth_largest(entries[1][:found], most) if most else (INFINITY, 0)
        ties = most - above
    lists = _list_of(found, entries, entries[0].size)
    cuts, offsets = np.zeros(1, np.int64), np.zeros(2, np.int64)
    bits = np.uint32(threshold)
    candidates.cut_lists(lists, bits, ties, cuts, offsets)
    candidates.emit(lists, (0, 1), bits, cuts, offsets, factors[0], residual, out)
    return int(offsets[1])


@jit
def select_short(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    most: int,
    floor: int,
    sample: F32,
    entries: Entries,
    out: Entries,
) -> int:
    """As `select_largest`, in one go."""
    least = max(floor, guess(x, residual, factors, most, sample)[0])
    found, top = begin(x, residual, factors, least, None, entries)
    if top >= INFINITY:
        return -1
    again = only_without(residual, x)
    return finish(again, residual, factors, (most, floor, least), found, entries, out)
