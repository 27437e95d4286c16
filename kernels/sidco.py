"""About k large elements, by thresholds that a fitted distribution gives: SIDCo.

Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression
Technique for Distributed Training Systems", MLSys 2021, with the exponential distribution.

Magnitudes of gradients are sparse, and nearly exponential. The threshold that c of them with the
mean excess m over a threshold t leave k above is then

    t + m ln(c / k)

One stage takes all elements, t = 0. Where the tail is not exponential, the threshold is off, and
another stage fits only what lies above t + m ln 4, about a quarter of what the last one fitted. A
threshold is never larger than the largest element, so that something is always sent.

The arithmetic of sums is the written one: magnitudes in blocks of 2048, by 16 strided lanes and
halving in float64, blocks in order. Thresholds are worked out in float64 and rounded to float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend

TOLERANCE = 0.2
"""A threshold is good if it leaves k elements, give or take so much of k."""

_LOG_QUARTER = math.log(4.0)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def select_sidco(
    x: Gradient,
    k: int,
    stages: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> int:
    """Send what reaches the threshold of the first stage that leaves k elements, or of the last.

    What is compared, sent and kept is as in :mod:`compressa.kernels.select`. Elements that are 0
    are not sent. Where there is no room for all, the largest are.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
        >>> indices, values = np.empty(1200, np.uint32), np.empty(1200, np.float32)
        >>> 800 <= select_sidco(x, 1000, 1, indices, values) <= 1200
        True

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        k: How many to aim at, 1 to n.
        stages: How many to try at most, at least one.
        indices: uint32[room], room at most n; the first ``count`` are overwritten.
        values: float32[room]; the first ``count`` are overwritten.
        residual: float32[n], updated in place; None for no feedback.
        scale: Loss scale that ``x`` carries and the residual does not.

    Returns:
        count: How many are sent.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``k``, ``stages`` or ``scale`` is wrong.
    """
    check_gradient(x)
    if not 1 <= k <= x.size <= 2**32 or stages < 1:
        raise ValueError(
            f"k = {k} must lie in 1 to n = {x.size}, and stages = {stages} be positive"
        )
    check_array("indices", indices, np.uint32, writable=True)
    if indices.size > x.size:
        raise ValueError(f"indices must have no more room than n = {x.size}")
    check_array("values", values, np.float32, indices.shape, writable=True)
    check_feedback(residual, x.size, scale)
    kernel = backend("sidco", x, indices, values, residual)
    return int(kernel.select_sidco(x, k, stages, indices, values, residual=residual, scale=scale))


def fitted_threshold(
    k: int,
    stages: int,
    size: int,
    total: float,
    largest: float,
    count: Callable[[float], int],
    measure: Callable[[float], tuple[int, float]],
) -> float:
    """The threshold of the first stage that is good, or of the last.

    Args:
        k: How many are to reach it.
        stages: How many stages at most.
        size: Number of elements.
        total: Sum of their magnitudes.
        largest: The largest of them.
        count: Says how many reach a threshold.
        measure: Says that, and what is the sum of their magnitudes.

    Returns:
        A float32 number larger than 0.
    """
    base, above = 0.0, size
    for stage in range(stages):
        excess = total / above - base
        threshold = _rounded(base + excess * math.log(above / k), largest)
        last = stage + 1 == stages or above <= 4 * k
        if last or abs(count(threshold) - k) <= TOLERANCE * k:
            break
        base = _rounded(base + excess * _LOG_QUARTER, largest)
        above, total = measure(base)
        if above <= k:
            break
    return threshold


def _rounded(threshold: float, largest: float) -> float:
    """A float32 number larger than 0, and no larger than ``largest`` if that is possible."""
    return float(np.float32(max(min(threshold, largest), _SMALLEST)))
