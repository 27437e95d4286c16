"""Choice: by which algorithm a collective takes the least time on a link, as predicted.

A candidate's time is that of its formula (see `cost`), times what measurements of the same
candidate took longer than the formula says, at the nearest sizes that were measured. The backend's
own all-reduce is taken for a ring, which the measurements then put right. All-gathers are not
measured: for each, those of the sum count that exchanges most alike. Nothing here depends on
the rank or on the machine: the arithmetic is Python's, correctly rounded, so the same figures give
the same choice everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from compressa.collectives import ring
from compressa.collectives.algorithms import ALGORITHMS, segments_of
from compressa.collectives.all_gather import ALL_GATHERS
from compressa.collectives.cost import Link

BACKEND = "backend"
ROUND_ROBIN = "round_robin"
"""What is mostly right for small sums: two hops."""

CANDIDATES = (BACKEND, ROUND_ROBIN, *(name for name in ALGORITHMS if name != ROUND_ROBIN))
"""All that can be chosen; of those that take the same time, the first."""


class Point(NamedTuple):
    """How far a formula is off at one size.

    Attributes:
        size_bytes: Of the sum.
        factor: The measured time over that of the formula.
    """

    size_bytes: int
    factor: float


@dataclass(frozen=True)
class Costs:
    """What sums of plain values and all-gathers take on a link.

    Attributes:
        link: Of the formulas.
        measured: By candidate, with rising sizes, how far its formula is off; where a candidate is
            missing, its formula counts.
    """

    link: Link
    measured: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    _best: dict[tuple[object, ...], str] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def time_s(self, name: str, size_bytes: int, ranks: int, *, busy_s: float = 0.0) -> float:
        """Predict how long a candidate takes for a sum.

        Args:
            name: The candidate.
            size_bytes: Of the sum.
            ranks: How many they are.
            busy_s: What a message takes besides where cores are busy.
        """
        link = self._busy(busy_s)
        return self.factor(name, size_bytes) * formula_s(link, name, size_bytes, ranks)

    def factor(self, name: str, size_bytes: int) -> float:
        """Return how many times what a candidate's formula says it should take.

        Args:
            name: The candidate. Where it was not measured, its formula counts: 1.
            size_bytes: Of the sum; between two sizes that were measured, it is interpolated.
        """
        return _factor(self.measured.get(name, ()), size_bytes)

    def best(self, size_bytes: int, ranks: int, *, backend: bool, busy_s: float = 0.0) -> str:
        """Return the fastest candidate.

        Args:
            size_bytes: Of the sum.
            ranks: How many they are.
            backend: Whether there is a backend that sums; it counts only where it was measured.
            busy_s: See `time_s`.
        """
        question = ("all_reduce", size_bytes, ranks, backend, busy_s)
        if question not in self._best:
            self._best[question] = min(
                self.candidates(backend=backend),
                key=lambda name: self.time_s(name, size_bytes, ranks, busy_s=busy_s),
            )
        return self._best[question]

    def gather_s(self, name: str, size_bytes: int, ranks: int, *, busy_s: float = 0.0) -> float:
        """Predict how long an all-gather takes.

        Args:
            name: Of `ALL_GATHERS`.
            size_bytes: Of each payload.
            ranks: How many they are.
            busy_s: See `time_s`.
        """
        link, algorithm = self._busy(busy_s), ALL_GATHERS[name]
        factor = self.factor(algorithm.alike, size_bytes)
        return factor * link.time_s(algorithm.stages(size_bytes, ranks))

    def best_gather(self, size_bytes: int, ranks: int, *, exact: bool, busy_s: float = 0.0) -> str:
        """Return the fastest all-gather.

        Args:
            size_bytes: Of each payload.
            ranks: How many they are.
            exact: Whether all payloads are as long; else none is joined to another.
            busy_s: See `time_s`.
        """
        question = ("all_gather", size_bytes, ranks, exact, busy_s)
        if question not in self._best:
            self._best[question] = min(
                (name for name, row in ALL_GATHERS.items() if exact or not row.joins(ranks)),
                key=lambda name: self.gather_s(name, size_bytes, ranks, busy_s=busy_s),
            )
        return self._best[question]

    def candidates(self, *, backend: bool) -> list[str]:
        """Return what there is to choose from; see `best`."""
        known = backend and bool(self.measured.get(BACKEND))
        return [name for name in CANDIDATES if name != BACKEND or known]

    def _busy(self, busy_s: float) -> Link:
        """The link, where messages take so much longer."""
        pair_s = self.link.pair_message_s
        return replace(
            self.link,
            message_s=self.link.message_s + busy_s,
            pair_message_s=None if pair_s is None else pair_s + busy_s,
        )


def formula_s(link: Link, name: str, size_bytes: int, ranks: int) -> float:
    """Return what a candidate's formula says of a sum, in the segments in which it is done.

    Args:
        link: Between the ranks.
        name: Of `CANDIDATES`.
        size_bytes: Of the sum.
        ranks: How many they are.

    Returns:
        Seconds.
    """
    if ranks == 1:
        return 0.0
    if name == BACKEND:
        return link.time_s(ring.stages(size_bytes, ranks))
    segments = segments_of(size_bytes, ranks)
    return link.time_s(ALGORITHMS[name].stages(size_bytes // segments, ranks), segments)


def points(
    link: Link, ranks: int, times: Iterable[tuple[str, int, float]]
) -> dict[str, list[Point]]:
    """Say how far formulas are off.

    Args:
        link: Of the formulas.
        ranks: How many there were.
        times: Candidates, sizes in bytes and the seconds that were measured.
    """
    found: dict[str, list[Point]] = {}
    for name, size_bytes, seconds in sorted(times):
        factor = seconds / formula_s(link, name, size_bytes, ranks)
        found.setdefault(name, []).append(Point(size_bytes, factor))
    return found


def _factor(known: Sequence[Point], size_bytes: int) -> float:
    """The factor on the line between two points; beyond them, that of the nearest."""
    if not known:
        return 1.0
    if size_bytes <= known[0].size_bytes:
        return known[0].factor
    for low, high in itertools.pairwise(known):
        if size_bytes <= high.size_bytes:
            share = (size_bytes - low.size_bytes) / (high.size_bytes - low.size_bytes)
            return (1 - share) * low.factor + share * high.factor
    return known[-1].factor
