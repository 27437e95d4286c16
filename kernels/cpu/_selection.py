"""The largest elements above a floor: in one compiled call if the vector is short."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U32, Gradient
from ..scratch import scratch
from . import _candidates as candidates
from ._candidates import FOUND, NOTES, TOP, Entries, Factors, Lists
from ._feedback import Values
from ._jit import jit
from ._listing import INFINITY, LEAST_PIECE, Listing, guessed, room_for, source_of
from ._rank import guess, nth_largest, sample_size


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
    out = indices, values
    if x.size <= LEAST_PIECE:
        sample = scratch("listing.sample", sample_size(x.size), np.float32)
        source, room = source_of(x, residual, scale), room_for(x.size)
        return int(_select_in_one(*source, most, floor, sample, room, out))
    hint = guessed(x, residual, scale, most)
    listing = Listing(x, residual, scale, hint._replace(least=max(hint.least, floor)))
    return listing.choose(most, floor, out) if listing.finite else -1


@jit
def _list_again(
    x: Values, residual: F32 | None, factors: Factors, least: np.uint32, cuts: I64, lists: Lists
) -> None:
    """List the one piece again, from another magnitude on."""
    bounds = 0, x.size, x.size
    if residual is None:
        candidates.list_pieces(x, None, factors, bounds, least, cuts, None, False, lists)
    else:
        candidates.list_pieces(None, residual, factors, bounds, least, cuts, None, False, lists)


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
    smallest = np.uint32(least)
    candidates.list_pieces(x, residual, factors, bounds, smallest, cuts, None, False, lists)
    if notes[0, TOP] >= INFINITY:
        if residual is not None:
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
        threshold, ties = INFINITY, 0
    candidates.cut_lists(lists, np.uint32(threshold), ties, cuts, offsets)
    candidates.emit(lists, (0, 1), np.uint32(threshold), cuts, offsets, factors[0], residual, out)
    return int(offsets[1])
