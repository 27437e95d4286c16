"""The largest errors of quantisers, over all vectors: what `bias` and `bias_of_mean` declare.

Each is a supremum, in units of ||x||^2, together with vectors that come as near to it as one likes.
All are worked out for real numbers; `ROUNDING` is what float32 adds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from compressa.bias import SMALLEST_NORMAL, Range

ROUNDING = 1 + 1e-5
LARGEST_BLOCK = 2.0**126  # of elements whose block has a scale of float32, extremes far apart too

_ANGLES = 4096  # of the scan in `clipped`: what lies between two is within 1e-6
_F64 = npt.NDArray[np.float64]


def to_nearest(others: int, levels: int) -> float:
    """Of rounding to multiples of max|x| / levels.

    The largest element is exact. Another one, of e steps, errs by at most min(e, 1/2), so that the
    bound is r / (1 + r), r = others / (4 levels^2); reached where each is half a step.

    Args:
        others: Elements that share the scale, but for the largest.
        levels: Steps of the largest element.

    Returns:
        The noise, as of `compressa.bias.Biased`; a `Contraction` has it as 1 - delta.
    """
    ratio = others / (4.0 * levels**2)
    return ratio / (1.0 + ratio) * ROUNDING


def at_random(others: int, levels: float) -> float:
    """Of unbiased rounding to multiples of max|x| / levels.

    The largest element is exact. Another one, of t steps, has a variance of t (1 - t) or less, so
    that omega is the least w with others t (1 - t) <= w (levels^2 + others t^2) for all t. Reached
    at t = 1 / (2 (1 + w)).

    Args:
        others: Elements that share the scale, but for the largest.
        levels: Steps of the largest element; more than 0.

    Returns:
        omega, as of `compressa.bias.Unbiased`.
    """
    return (math.sqrt(1.0 + others / levels**2) - 1.0) / 2.0 * ROUNDING


def of_length(elems: int, levels: int) -> float:
    """Of unbiased rounding to multiples of ||x||_2 / levels.

    In steps, sum t^2 = levels^2. Up to a mean t of 1/2, sum t (1 - t) is largest where all are
    equal; beyond, each has a variance of at most 1/4, which multiples of 1/2 reach.

    Args:
        elems: Elements of the vector.
        levels: Steps of its length; at least 1.

    Returns:
        omega, as of `compressa.bias.Unbiased`.
    """
    if elems < 4 * levels**2:
        return elems / (4.0 * levels**2) * ROUNDING
    return (math.sqrt(elems) / levels - 1.0) * ROUNDING


@lru_cache
def clipped(elems: int, clip: float, ranks: int = 1) -> float:
    """Of three values -s, 0, s at random, s = max over ranks of min(max|g|, clip rms(g)).

    In units of sum ||g_i||^2 / ranks^2, for the mean over ranks. An element up to s has a variance
    of s |x| - x^2, one beyond it loses |x| - s, and where all ranks lose, they lose it in the same
    direction. The first is concave in x^2 and the second convex. So in a worst case one rank, which
    sets s, has a single large element and all others alike; and so have the other ranks, at the
    same index, if any. With r = 1 and many elements that is 1 + clip^2 / 8 up to clip = 4, then
    clip - 1. With few elements, there is no closed form: the large element's share of its rank is
    scanned, the other ranks follow from it, and Dinkelbach's iteration finds the largest quotient.

    Args:
        elems: Of a rank's vector.
        clip: In root mean squares.
        ranks: That share s.
    """
    angle = np.linspace(0.0, math.pi / 2, _ANGLES, endpoint=False)
    first = math.sqrt(elems) * np.cos(angle)
    rest = math.sqrt(elems / (elems - 1)) * np.sin(angle) if elems > 1 else 0.0 * angle
    square = first**2 + (elems - 1) * rest**2
    scale = np.minimum(np.maximum(first, rest), clip * np.sqrt(square / elems))
    own = _variance(first, scale) + (elems - 1) * _error(rest, scale)
    bound, found = -1.0, 0.0
    while found > bound * (1 + 1e-9):
        bound = found
        small = np.minimum(scale / (2 * (1 + bound)), scale)
        found = bound
        for large in (small, _aligned(first, scale, bound, ranks)):
            lost = np.maximum(first - scale, 0) + (ranks - 1) * np.maximum(large - scale, 0)
            others = (elems - 1) * _variance(small, scale) + _variance(large, scale)
            error = own + lost**2 + (ranks - 1) * others
            squares = square + (ranks - 1) * ((elems - 1) * small**2 + large**2)
            found = max(found, float((error / squares)[(error - bound * squares).argmax()]))
    return found * ROUNDING


def clipped_range(elems: int, clip: float, ranks: int = 1) -> Range:
    """Return the magnitudes for which `clipped` holds; the arguments are its own.

    There s / ranks is normal, even if it is clip / sqrt(elems) of the only element.
    """
    smallest = SMALLEST_NORMAL * ranks * max(1.0, math.sqrt(elems) / clip)
    return Range(smallest, LARGEST_BLOCK)


def _variance(x: _F64, scale: _F64) -> _F64:
    """Of an element up to the scale; none beyond it."""
    variance: _F64 = np.maximum(scale * x - x**2, 0.0)
    return variance


def _error(x: _F64, scale: _F64) -> _F64:
    error: _F64 = _variance(x, scale) + np.maximum(x - scale, 0.0) ** 2
    return error


def _aligned(first: _F64, scale: _F64, bound: float, ranks: int) -> _F64:
    """The other ranks' large element beside that of the first, if they lose something, too."""
    most = np.maximum(first, scale)
    if bound <= ranks - 1:
        return most
    stationary: _F64 = (first - ranks * scale) / (bound - ranks + 1)
    return np.clip(stationary, scale, most)
