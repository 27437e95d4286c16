"""Fits the cost model to what ranks measure: alike on a testbed and on the user's own network.

a and b come from exchanges of every rank with every other, all at the same time, as sums have them:
what ranks that share a machine or a switch take from each other is in them; those of a pair come
from two ranks that do so while the others are silent. g comes from additions of all ranks at the
same time. Then every way of summing is timed at a few sizes, which says how far the formulas are
off.

Whatever else uses the network or the processors for a moment disturbs what is timed in it. So each
thing is timed in several rounds, of which each has all of them, and of each the median over the
rounds counts: it lies among what the undisturbed rounds have, for as long as they are most of them.
`byte_spread` says how far the rounds' own b lie apart. Where that is far there is another go.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from compressa.collectives.choice import CANDIDATES, formula_s
from compressa.collectives.cost import Link
from compressa.engine.start.link_file import MOST_SPREAD, Figures, Measured
from compressa.link.chain import Ask, Timed
from compressa.link.operations import ADD, HOP, HOPS, PAIR

MOST_BYTES = 16 << 20
_SMALL_BYTES, _MIDDLE_BYTES, _LEAST_LARGE_BYTES = 1 << 10, 256 << 10, 512 << 10
_LARGE_S = 0.1
_ADD_BYTES = 4 << 20
LEAST_ROUNDS, MOST_ROUNDS = 3, 5
_ROUNDS_S = 8.0  # slow networks have fewer rounds
SIZES_BYTES = (1 << 10, 16 << 10, 256 << 10, 2 << 20, 8 << 20)
LONGEST_S = 0.4  # of a sum that is timed: larger ones are off by as much

Measure = Callable[[Ask], Timed]
Times = Mapping[tuple[str, int], float]
"""Seconds, by what was timed and its size in bytes."""


def fitted(
    ranks: int, budget_s: float, measure: Measure, candidates: Sequence[str] = CANDIDATES
) -> Figures:
    """Have ranks measure, and fit.

    Args:
        ranks: How many they are.
        budget_s: Seconds for each of the things that are timed.
        measure: Has the ranks measure one; gives the same on every rank that calls this.
        candidates: The ways of summing that are timed.
    """

    def median_s(ask: Ask) -> float:
        return statistics.median(measure(ask).samples_s)

    middle_s = median_s(Ask(HOP, _MIDDLE_BYTES, budget_s)) / HOPS
    large_bytes = int(_MIDDLE_BYTES * min(_LARGE_S / middle_s, MOST_BYTES / _MIDDLE_BYTES))
    large_bytes = max(large_bytes, _LEAST_LARGE_BYTES)
    several = _several(middle_s / _MIDDLE_BYTES * large_bytes)

    def timed() -> Times:
        share_s = budget_s / several
        found = {(ADD, _ADD_BYTES): median_s(Ask(ADD, _ADD_BYTES, share_s))}
        for what in (HOP, PAIR):
            small, large = (what, _SMALL_BYTES), (what, large_bytes)
            found[small] = median_s(Ask(*small, share_s)) / HOPS
            found[large] = median_s(Ask(*large, share_s, rounds=1)) / HOPS
        return found

    rounds = [timed() for _ in range(several)]
    if byte_spread(rounds) > MOST_SPREAD:
        rounds += [timed() for _ in range(several)]
    times = middle(rounds)
    several_s, byte_s = _line(times, HOP)
    add_s = times[ADD, _ADD_BYTES] / _ADD_BYTES
    link = Link(several_s / (ranks - 1), byte_s, add_s, *_line(times, PAIR))
    measured = tuple(
        Measured(
            algorithm=name,
            size_bytes=size_bytes,
            median_s=median_s(Ask(name, size_bytes, budget_s)),
        )
        for name, size_bytes in sums(link, ranks)
        if name in candidates
    )
    return Figures(
        ranks=ranks,
        **vars(link),
        byte_spread=byte_spread(rounds),
        measured=measured,
    )


def sums(link: Link, ranks: int) -> Iterator[tuple[str, int]]:
    """Yield the candidates, and the sizes at which they are timed.

    Args:
        link: As fitted; what it predicts to take longer than 0.4 s is left out.
        ranks: How many they are.

    Yields:
        Name of a candidate, bytes of the sum.
    """
    for size_bytes in SIZES_BYTES:
        for name in CANDIDATES:
            if size_bytes == SIZES_BYTES[0] or (
                formula_s(link, name, size_bytes, ranks) <= LONGEST_S
            ):
                yield name, size_bytes


def middle(rounds: Sequence[Times]) -> Times:
    """Return the median of each thing over the rounds, which all have the same things.

    Example:
        >>> middle([{("hop", 1): 2.0}, {("hop", 1): 90.0}, {("hop", 1): 3.0}])
        {('hop', 1): 3.0}
    """
    return {key: statistics.median(times[key] for times in rounds) for key in rounds[0]}


def byte_spread(rounds: Sequence[Times]) -> float:
    """Say how far b lies apart from round to round, as a share of its median.

    A quarter of the rounds is left out at both ends: so many may be disturbed without harm.

    Example:
        >>> rounds = [{("hop", 0): 0.0, ("hop", 1): b} for b in (0.9, 1.0, 1.0, 1.02, 1.6)]
        >>> round(byte_spread(rounds), 3)
        0.02
    """
    found = sorted(_line(times, HOP)[1] for times in rounds)
    out = len(found) // 4
    return (found[-1 - out] - found[out]) / statistics.median(found)


def line_through(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """Return the seconds of a message, at least 0, and of a byte, from the times of two sizes.

    Args:
        small: Bytes and seconds.
        large: Bytes, more than those, and seconds.

    Example:
        >>> line_through((1000, 0.002), (2000, 0.003))
        (0.001, 1e-06)
    """
    (small_bytes, small_s), (large_bytes, large_s) = small, large
    byte_s = (large_s - small_s) / (large_bytes - small_bytes)
    return max(0.0, round(small_s - small_bytes * byte_s, 12)), byte_s


def _line(times: Times, what: str) -> tuple[float, float]:
    small, large = sorted(
        (size, seconds) for (name, size), seconds in times.items() if name == what
    )
    return line_through(small, large)


def _several(large_s: float) -> int:
    """How many rounds there are: each times two large things, of which the first warms up."""
    round_s = 2 * 2 * HOPS * large_s
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(_ROUNDS_S / round_s)))
