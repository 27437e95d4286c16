"""Fits the cost model to what ranks measure: alike on a testbed and on the user's own network.

a and b come from exchanges of every rank with every other, all at the same time, as sums have them:
what ranks that share a machine or a switch take from each other is in them. g comes from additions
of all ranks at the same time. Then every way of summing is timed at a few sizes, which says how far
the formulas are off.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from compressa.bench.network.methods import ADD, HOP, HOPS, PAIR
from compressa.bench.network.wire import Ask
from compressa.collectives.choice import CANDIDATES, DIRECT, formula_s
from compressa.collectives.cost import Link
from compressa.engine.link_file import Figures, Measured

MOST_BYTES = 16 << 20
_SMALL_BYTES, _MIDDLE_BYTES, _LEAST_LARGE_BYTES = 1 << 10, 256 << 10, 1 << 20
_LARGE_S = 0.1
_ADD_BYTES = 4 << 20
SIZES_BYTES = (1 << 10, 16 << 10, 256 << 10, 2 << 20, 8 << 20)
LONGEST_S = 0.4  # of a sum that is timed: larger ones are off by as much

Measure = Callable[[Ask], tuple[list[float], int]]


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

    def median_s(what: str, size_bytes: int) -> float:
        return statistics.median(measure(Ask(what, size_bytes, budget_s))[0])

    def hop_s(what: str, size_bytes: int) -> float:
        return median_s(what, size_bytes) / HOPS

    middle_s = hop_s(HOP, _MIDDLE_BYTES)
    large_bytes = int(_MIDDLE_BYTES * min(_LARGE_S / middle_s, MOST_BYTES / _MIDDLE_BYTES))
    large_bytes = max(large_bytes, _LEAST_LARGE_BYTES)
    times_s = {
        what: [(size, hop_s(what, size)) for size in (_SMALL_BYTES, large_bytes)]
        for what in (HOP, PAIR)
    }
    several_s, byte_s = line_through(*times_s[HOP])
    link = Link(several_s / (ranks - 1), byte_s, median_s(ADD, _ADD_BYTES) / _ADD_BYTES)
    measured = tuple(
        Measured(algorithm=name, size_bytes=size, median_s=median_s(what, size))
        for name, what, size in sums(link, ranks)
        if name in candidates
    )
    return Figures(
        ranks=ranks,
        message_s=link.message_s,
        byte_s=link.byte_s,
        reduce_s=link.reduce_s,
        pair_byte_s=line_through(*times_s[PAIR])[1],
        measured=measured,
    )


def sums(link: Link, ranks: int) -> Iterator[tuple[str, str, int]]:
    """Yield the candidates, the methods that they are, and the sizes at which they are timed."""
    for size_bytes in SIZES_BYTES:
        for name in CANDIDATES:
            if size_bytes == SIZES_BYTES[0] or (
                formula_s(link, name, size_bytes, ranks) <= LONGEST_S
            ):
                yield name, method_of(name), size_bytes


def method_of(candidate: str) -> str:
    """Return the method that a candidate is to the benchmark, which times it cut as well."""
    return "scatter_reduce" if candidate == DIRECT else candidate


def line_through(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """Return the seconds of a message and of a byte, from the times of two sizes.

    Example:
        >>> line_through((1000, 0.002), (2000, 0.003))
        (0.001, 1e-06)
    """
    (small_bytes, small_s), (large_bytes, large_s) = small, large
    byte_s = (large_s - small_s) / (large_bytes - small_bytes)
    return max(0.0, round(small_s - small_bytes * byte_s, 12)), byte_s
