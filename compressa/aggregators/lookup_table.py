"""The table of THC's 16 codes: integers whose stochastic rounding costs least (Li et al., 2024).

Rotated coordinates are nearly standard normal. A value between two neighbours a < b of the table
is rounded to one of them with a mean squared error of (z - a)(b - z), so a table costs

    sum over neighbours of the integral from a to b of (z - a)(b - z) phi(z) dz

where integer k of 0..levels stands for z = (2 k / levels - 1) clip. The ends are fixed, and the
table is symmetric, so eight integers are chosen, by dynamic programming over the number chosen so
far and the last of them. Every integral is a closed expression in erf and exp; it is rounded to
2^-40, so that all machines choose alike, whatever the last bits of their mathematics library. Of
tables that cost the same the first in lexicographic order is taken.
"""

from __future__ import annotations

import functools
import math

CODES = 16
_GRAIN = 2.0**40


@functools.cache
def best_table(levels: int, clip: float) -> tuple[int, ...]:
    """Return the table of least cost.

    Args:
        levels: The largest integer, at least 15.
        clip: What it stands for, in standard deviations.

    Example:
        >>> best_table(15, 2.5)
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
        >>> best_table(30, 2.5)
        (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
    """
    most = (levels - 1) // 2  # the largest integer of the lower half
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for _ in range(CODES // 2 - 1):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for last, (cost, table) in best.items():
            for k in range(last + 1, most + 1):
                option = (cost + 2 * _cost(last, k, levels, clip), (*table, k))
                longer[k] = min(longer.get(k, option), option)
        best = longer
    closed = (
        (cost + _cost(last, levels - last, levels, clip), table)
        for last, (cost, table) in best.items()
    )
    half = min(closed)[1]
    return half + tuple(levels - k for k in reversed(half))


def _cost(low: int, high: int, levels: int, clip: float) -> int:
    """The integral between two neighbours, in grains."""
    a, b = ((2 * k / levels - 1) * clip for k in (low, high))
    mass = _below(b) - _below(a)
    first = _density(a) - _density(b)
    second = mass + a * _density(a) - b * _density(b)
    return round(((a + b) * first - second - a * b * mass) * _GRAIN)


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _below(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2
