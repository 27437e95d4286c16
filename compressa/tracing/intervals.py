"""Intervals of time: unions, differences, and how much of them lies in a window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Self

Interval = tuple[float, float]


class Intervals:
    """A union of intervals, as disjoint ones in order.

    Args:
        pieces: Begin and end of each, in any order; they may overlap.

    Example:
        >>> busy = Intervals([(0, 2), (1, 3), (5, 6)])
        >>> list(busy), busy.within(2, 6)
        ([(0, 3), (5, 6)], 2.0)
        >>> list(Intervals([(1, 8)]) - busy)
        [(3, 5), (6, 8)]
    """

    def __init__(self, pieces: Iterable[Interval]) -> None:
        self._pieces = list(merged(pieces))
        self._begins = [begin for begin, _ in self._pieces]
        lengths = (end - begin for begin, end in self._pieces)
        self._before = list(accumulate(lengths, initial=0.0))

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._pieces)

    def __sub__(self, other: Self) -> Intervals:
        """What lies in these and not in others."""
        left: list[Interval] = []
        holes = iter(other)
        hole = next(holes, None)
        for begin, end in self:
            while hole is not None and hole[1] <= begin:
                hole = next(holes, None)
            while hole is not None and hole[0] < end:
                left.append((begin, hole[0]))
                begin = hole[1]
                if begin >= end:
                    break
                hole = next(holes, None)
            left.append((begin, end))
        return Intervals(left)

    def within(self, begin: float, end: float) -> float:
        """How much of them lies between two times.

        Args:
            begin: No later than `end`.
            end: In the unit of the pieces, as is what is returned.
        """
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        index = bisect_right(self._begins, time)
        if not index:
            return 0.0
        return (
            self._before[index - 1]
            + min(time, self._pieces[index - 1][1])
            - self._begins[index - 1]
        )


def merged(pieces: Iterable[Interval], *, empty: bool = False) -> Iterator[Interval]:
    """Yield the union of intervals as disjoint ones, in order.

    Args:
        pieces: Begin and end of each, in any order.
        empty: Whether pieces without length are kept where they lie in no other.
    """
    current: Interval | None = None
    for begin, end in sorted(pieces):
        if end < begin or (end == begin and not empty):
            continue
        if current is None or begin > current[1]:
            if current is not None:
                yield current
            current = begin, end
        else:
            current = current[0], max(current[1], end)
    if current is not None:
        yield current
