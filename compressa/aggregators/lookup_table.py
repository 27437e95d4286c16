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

import numpy as np
import numpy.typing as npt

CODES = 16
_GRAIN = 2.0**40
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
_RATES = np.linspace(0.25, 6.0, 93)
_ROUNDING = 1 + 1e-4  # what lies between two of the numbers that are tried, and float32
_F64 = npt.NDArray[np.float64]


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


@functools.cache
def largest_error(table: tuple[int, ...], levels: int, clip: float, ranks: int) -> float:
    """Return a bound of E||mean of decoded - mean of p||^2 / (sum ||p_i||^2 / ranks^2).

    Let the longest p be 1 long, and a coordinate z, rounded with a variance of r(z), lose c(z) to
    clipping. It is a sum of the elements with random signs, of which E z^2 = ||p||^2 and
    E cosh(a z) <= exp(a^2 ||p||^2 / 2) are known, so what is below r(0) + b cosh(a z) everywhere
    has at most r(0) + b exp(a^2 / 2). What is clipped may add up over the ranks: w and 1 - w share
    it between the longest and the others, which have at most r(z) + K z^2 each, K = what clipping
    costs one rank times (ranks - 1) / (1 - w). The bound B is the least with
    B >= longest + (ranks - 1) max_z (r(z) + K z^2 - B z^2).

    Nearly reached where one rank has all, in one or two elements: the other ranks' r(0) is the most
    of it. On few ranks it is up to a quarter too large, as exp(a^2 / 2) is that of many elements.

    Args:
        table: Integers of the codes.
        levels: The largest of them.
        clip: What it stands for, in standard deviations.
        ranks: How many there are.
    """
    z = np.arange(0.0, clip + 20.0, 2.0**-9)
    codes, inside = (2.0 * np.array(table) / levels - 1.0) * clip, np.minimum(z, clip)
    above = np.clip(np.searchsorted(codes, inside, side="right"), 1, CODES - 1)
    rounded, lost = (inside - codes[above - 1]) * (codes[above] - inside), (z - inside) ** 2
    others, alone = ranks - 1, _most_of_sums(z, lost)
    bounds = []
    for share in _SHARES if others else (1.0,):
        longest = rounded[0] + _most_of_sums(z, rounded + lost / share - rounded[0])
        slope, bound = alone * others / (1.0 - share) if others else 0.0, 0.0
        while bound < (due := longest + others * float((rounded + (slope - bound) * z**2).max())):
            bound = max(1.001 * bound, min(due, longest + others * rounded[0]))
        bounds.append(bound)
    return float(min(bounds)) * _ROUNDING


def _most_of_sums(z: _F64, values: _F64) -> float:
    """The largest mean of a function of sums with random signs that are 1 long."""
    return min(
        max(0.0, float((values / np.cosh(rate * z)).max())) * math.exp(rate**2 / 2)
        for rate in _RATES
    )


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
