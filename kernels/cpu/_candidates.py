"""Lists of candidates, piece by piece of a vector: made, put back, cut and joined.

What is compared is q (`_unscaled.py`), which stays in the residual until it is sent.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, I64, U32
from ._append import LARGEST, WORD, append, list_flagged
from ._feedback import Factors, Values, magnitude_bits
from ._jit import jit, lean, lean_nested, nested
from ._prefetch import prefetch
from ._sums import LANES, Sums, add_up
from ._unscaled import look, unscaled
from ._view import first_of, only_with, view

BLOCK = 2048  # elements that go through the first-level cache together
_ENTRIES_AHEAD = 32  # the lines of entries are far apart, and stores wait for them one by one
_INFINITY = np.uint32(0x7F800000)
_NOTHING = np.float32(0)

FOUND, FULL, TOP = range(3)
NOTES = 3
"""What is noted of a list: its length, whether it is full, and the piece's largest magnitude."""

Entries = tuple[U32, F32]
Lists = tuple[Entries, I64, I64]
"""Indices and values of all lists; where each piece's begin, and the last one ends; their notes."""


@lean_nested
def _span(lists: Lists, number: int) -> tuple[int, int]:
    """Where a piece's list begins and ends."""
    begin = lists[1][number]
    return begin, begin + lists[2][number, FOUND]


@nested
def list_part(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    span: tuple[int, int],
    least: np.uint32,
    measured: Sums | None,
    entries: Entries,
    notes: I64,
) -> None:
    """Go on with a piece's list; list nothing more once a block might not fit."""
    room, magnitudes = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    flags, lanes = np.empty(BLOCK // WORD, np.uint64), np.empty(LANES)
    (indices, values), found, largest = entries, notes[FOUND], np.uint32(0)
    for low in range(span[0], span[1], BLOCK):
        high, listed = min(low + BLOCK, span[1]), found
        sizes = only_with(measured, view(magnitudes, 0, high - low))
        flags[:] = np.uint64(0)
        top = look(x, residual, factors, low, high, room, sizes, flags, least)
        largest = max(largest, top)
        notes[FULL] |= np.int64(found + high - low > indices.size)
        if not notes[FULL]:
            q = first_of(view(residual, low, high), view(room, 0, high - low))
            found = list_flagged(flags, q, np.uint32(low), indices, values, found)
        if measured is not None:
            these = view(indices, listed, found), view(values, listed, found)
            known = LARGEST + 1 if notes[FULL] else int(np.int64(least))
            add_up(sizes, these, known, low // BLOCK, measured, lanes)
    notes[FOUND] = found
    notes[TOP] = max(notes[TOP], np.int64(largest))


@jit
def list_pieces(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    bounds: tuple[int, int, int],
    least: np.uint32,
    cuts: I64,
    measured: Sums | None,
    lists: Lists,
) -> None:
    """List the candidates of the pieces from ``low`` to ``high``.

    Args:
        x: The vector, float32 or the bits of 16-bit floats; None if the residual holds q already.
        residual: What is added to it; it receives q where that is finite. Or None.
        factors: The loss scale, and one over it.
        bounds: low, high, and elements in a piece.
        least: The smallest magnitude of a candidate.
        cuts: For each piece, the element from which on candidates have to be larger than that.
        measured: Receives sums of each block; or None.
        lists: Receives entries and notes.
    """
    low, high, piece = bounds
    (indices, values), begins, notes = lists
    for begin in range(low, high, piece):
        number, end = begin // piece, min(begin + piece, high)
        mine = slice(begins[number], begins[number + 1])
        own, note = (indices[mine], values[mine]), notes[number]
        cut = max(begin, cuts[number])
        note[:] = 0
        more = np.uint32(least + 1)
        list_part(x, residual, factors, (begin, cut), least, measured, own, note)
        list_part(x, residual, factors, (cut, end), more, measured, own, note)


@jit
def summary(notes: I64) -> tuple[int, bool, int]:
    """How many all lists have, whether any is full, and the largest magnitude."""
    found, full, top = 0, False, 0
    for number in range(notes.shape[0]):
        found += notes[number, FOUND]
        full |= notes[number, FULL] != 0
        top = max(top, notes[number, TOP])
    return found, full, top


@jit
def tally(lists: Lists, numbers: tuple[int, int], least: int, shift: int, counts: I64) -> None:
    """Histogram of the magnitudes in each of some lists; the last bucket is open."""
    values, top = lists[0][1], counts.shape[1] - 1
    for number in range(numbers[0], numbers[1]):
        mine = counts[number]
        mine[:] = 0
        begin, end = _span(lists, number)
        for i in range(begin, end):
            mine[min((np.int64(magnitude_bits(values[i])) - least) >> shift, top)] += 1


@jit
def gather(lists: Lists, least: int, most: int, few: Entries) -> int:
    """Join what all lists have between two magnitudes, both included; return how many."""
    (indices, values), found = lists[0], int(np.int64(0))
    low, extent, base = np.uint32(least), np.uint32(most - least), np.uint32(0)
    for number in range(lists[2].shape[0]):
        begin, end = _span(lists, number)
        mine, their = indices[begin:end], values[begin:end]
        found = append(mine, their, low, extent, base, few[0], few[1], found)
    return found


@lean_nested
def compare(values: F32, threshold: np.uint32) -> tuple[int, int]:
    """How many magnitudes are larger than the threshold, and how many equal."""
    above, equal = np.uint32(0), np.uint32(0)
    for i in range(values.size):
        magnitude = magnitude_bits(values[i])
        # Numba adds in 64 bits; counted in 32, twice as many fit a vector.
        above = np.uint32(above + np.uint32(magnitude > threshold))
        equal = np.uint32(equal + np.uint32(magnitude == threshold))
    return int(np.int64(above)), int(np.int64(equal))


@lean_nested
def _after_ties(values: F32, threshold: np.uint32, ties: int) -> int:
    """Where the first so many that equal the threshold end."""
    i = 0
    while ties:
        ties -= int(magnitude_bits(values[i]) == threshold)
        i += 1
    return i


@jit
def cut_lists(lists: Lists, threshold: np.uint32, ties: int, cuts: I64, offsets: I64) -> None:
    """Where in each list ties are no longer chosen, and where its chosen ones go."""
    values = lists[0][1]
    offsets[0] = 0
    for number in range(cuts.size):
        begin, end = _span(lists, number)
        above, equal = compare(values[begin:end], threshold)
        taken = min(ties, equal)
        cuts[number] = end
        if taken < equal:
            cuts[number] = begin + _after_ties(values[begin:end], threshold, taken)
        offsets[number + 1] = offsets[number] + above + taken
        ties -= taken


@lean
def send(indices: U32, values: F32, loss_scale: np.float32, residual: F32 | None) -> None:
    """Multiply by the loss scale; what stays finite by that leaves nothing behind."""
    for i in range(values.size):
        if residual is not None:
            prefetch(residual, np.int64(indices[min(i + _ENTRIES_AHEAD, values.size - 1)]))
        values[i] *= loss_scale
        if residual is not None and magnitude_bits(values[i]) < _INFINITY:
            residual[indices[i]] = _NOTHING


@jit
def emit(
    lists: Lists,
    numbers: tuple[int, int],
    threshold: np.uint32,
    cuts: I64,
    offsets: I64,
    loss_scale: np.float32,
    residual: F32 | None,
    out: Entries,
) -> None:
    """Write the chosen of some lists in order; they leave nothing in the residual."""
    base = np.uint32(0)
    for number in range(numbers[0], numbers[1]):
        begin, end = _span(lists, number)
        part = slice(offsets[number], offsets[number + 1])
        indices, values, found = out[0][part], out[1][part], int(np.int64(0))
        cut = cuts[number]
        for start, stop, least in ((begin, cut, threshold), (cut, end, np.uint32(threshold + 1))):
            some, their = lists[0][0][start:stop], lists[0][1][start:stop]
            extent = np.uint32(LARGEST - np.int64(least))
            found = append(some, their, least, extent, base, indices, values, found)
        send(indices, values, loss_scale, residual)


@jit
def histogram(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    bounds: tuple[int, int, int],
    least: int,
    shift: int,
    counts: I64,
) -> None:
    """Histogram of the magnitudes of q in each piece, from ``least`` on; beyond it, none count.

    One of ``x`` and ``residual`` is None.
    """
    room, (low, high, piece) = np.empty(BLOCK, np.float32), bounds
    for begin in range(low, high, piece):
        mine, end = counts[begin // piece], min(begin + piece, high)
        mine[:] = 0
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            top = look(x, residual, factors, start, stop, room, None, None, np.uint32(0))
            if top >= least:
                q = first_of(view(residual, start, stop), view(room, 0, stop - start))
                for i in range(q.size):
                    bucket = (np.int64(magnitude_bits(q[i])) - least) >> shift
                    if 0 <= bucket < mine.size:
                        mine[bucket] += 1


@jit
def end_of_ties(
    x: Values | None, residual: F32 | None, factors: Factors, begin: int, threshold: int, ties: int
) -> int:
    """Where, from ``begin`` on, the first so many elements of q that equal the threshold end."""
    i = begin
    while ties:
        ties -= int(magnitude_bits(unscaled(x, residual, factors, i)) == threshold)
        i += 1
    return i


@jit
def count_listed(lists: Lists, threshold: np.uint32) -> int:
    """How many in all lists reach a threshold."""
    count = 0
    for number in range(lists[2].shape[0]):
        begin, end = _span(lists, number)
        above, equal = compare(lists[0][1][begin:end], threshold)
        count += above + equal
    return count


@jit
def count_all(
    x: Values | None,
    residual: F32 | None,
    factors: Factors,
    bounds: tuple[int, int],
    threshold: np.uint32,
) -> int:
    """How many of q reach a threshold from ``low`` to ``high``; ``x`` or ``residual`` is None."""
    room, count = np.empty(BLOCK, np.float32), 0
    for low in range(bounds[0], bounds[1], BLOCK):
        high = min(low + BLOCK, bounds[1])
        look(x, residual, factors, low, high, room, None, None, threshold)
        q = first_of(view(residual, low, high), view(room, 0, high - low))
        above, equal = compare(q, threshold)
        count += above + equal
    return count
