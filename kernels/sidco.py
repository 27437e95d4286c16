"""About k large elements, by thresholds that a fitted distribution gives: SIDCo.

Abdelmoniem, Elzanaty, Alouini and Canini, "An Efficient Statistical-based Gradient Compression
Technique for Distributed Training Systems", MLSys 2021, with the exponential distribution.

Magnitudes of gradients are sparse, and nearly exponential. The threshold that c of them with the
mean excess m over a threshold t leave k above is then

    t + m ln(c / k)

One stage takes all elements, t = 0. Where the tail is not exponential, the threshold is off, and
another stage fits only what lies above a larger t. A threshold is never larger than the largest
element, so that something is always sent.

An exponential tail has the same mean excess over any t, so it does not matter exactly where a stage
begins. The paper takes t + m ln 4, with t and m of the stage before, and reads the vector once
more for it. Here a sample says it, so that one look at the vector serves the fits of all stages,
which are over all elements as they are in the paper. Of S stages, the last one begins where about
c = 5 k / 4 elements are left, and stage s where n (c / n)**(s / (S - 1)) are: at the sample's
magnitude of that rank (`base_ranks`), or at the smallest number above 0 if that is 0. The sample
has n elements if n < 4096, else n // 64, but 1024 at least and 2**15 at most; which, is as in
:mod:`compressa.kernels.dgc`.

A few elements far out, 10,000 times as large as the others, raise the mean excess over any t, and
so the threshold, until next to nothing reaches it. Where fewer than 0.8 k elements do, the k
largest are sent, exactly: any threshold from a fit has failed then, and the largest are listed
already. So they are, as far as there are any, where no more than k elements differ from 0.

The arithmetic of sums is the written one: magnitudes in blocks of 2048, by 16 strided lanes and
halving in float64, blocks in order. Thresholds are worked out in float64 and rounded to float32.
Their logarithm is exempt from being the same on every device: those of CUDA and of C's library
differ by at most 1 ulp of float64. Each rank selects for itself and sends indices, so all ranks
that decode them have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend
from ._selection import mark, sample_indices, sum_blocks, take_largest, unscaled

TOLERANCE = 0.2
"""A threshold is good if it leaves k elements, give or take so much of k."""

SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_WHOLE, _MOST_SAMPLED = 1 << 12, 1 << 15


def select_sidco(
    x: Gradient,
    k: int,
    stages: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Send what reaches the threshold of the first stage that leaves k elements, or of the last.

    What is compared, sent and kept is as in :mod:`compressa.kernels.select`. Elements that are 0
    are not sent. Where there is no room for all, the largest are. With room for k, no fewer than
    0.8 k are sent, but where that is all there are.

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
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Returns:
        count: How many are sent.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``k``, ``stages`` or ``loss_scale`` is wrong.
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
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("sidco", x, indices, values, residual):
        return int(
            kernel.select_sidco(
                x, k, stages, indices, values, residual=residual, loss_scale=loss_scale
            )
        )
    q = unscaled(x, residual, loss_scale)
    sizes, threshold, most = np.abs(q), 0.0, 0
    if np.isfinite(q).all():
        sample = sizes[sample_indices(q.size, sampled(q.size))]
        bases = _bases(sample, base_ranks(k, q.size, stages))
        reaching = [_reaching(sizes, base) for base in bases]
        largest = float(sizes.max())
        threshold, failed = fitted_threshold(
            k, bases, reaching, largest, lambda t: _reaching(sizes, t)[0]
        )
        most = min(k, indices.size) if failed else indices.size
    found = take_largest(q, most, threshold, indices, values, residual, loss_scale)
    return found if found >= 0 else mark(indices, values)


def sampled(size: int) -> int:
    """Return how many elements a sample of `size` has."""
    return size if size < _WHOLE else min(max(size // 64, _WHOLE // 4), _MOST_SAMPLED)


@lru_cache(maxsize=1 << 12)  # a few layers' sizes
def base_ranks(k: int, size: int, stages: int) -> tuple[int, ...]:
    """Return which of a sample's magnitudes (1: the largest) each stage but the first begins at.

    Args:
        k: How many elements are to be sent.
        size: How many there are.
        stages: Of the fit; at least 1.
    """
    sample, share = sampled(size), min(1.25 * k / size, 1.0)
    shares = (share ** (stage / (stages - 1)) for stage in range(1, stages))
    return tuple(max(1, min(sample, math.ceil(sample * share))) for share in shares)


def most_counted(k: int) -> int:
    """Return the least number of elements that is too large where k were asked for."""
    return math.ceil((1 + TOLERANCE) * k)


def fitted_threshold(
    k: int,
    bases: Sequence[float],
    reaching: Sequence[tuple[int, float]],
    largest: float,
    count: Callable[[float], int],
) -> tuple[float, bool]:
    """The threshold of the first stage that is good, or of the last; and whether it has failed.

    Args:
        k: How many are to reach it.
        bases: Where each stage's tail begins.
        reaching: How many elements reach each base, and the sum of their magnitudes.
        largest: The largest magnitude.
        count: Says how many reach a threshold; anything above `most_counted` if those are more.

    Returns:
        A float32 number larger than 0; and whether only k are to be sent of what reaches it.
    """
    threshold, found = SMALLEST, 0
    for stage, (base, (above, total)) in enumerate(zip(bases, reaching, strict=True)):
        if stage and above <= k:
            break
        threshold = stage_threshold(k, base, above, total, largest)
        found = count(threshold)
        if abs(found - k) <= TOLERANCE * k:
            break
    if k - found > TOLERANCE * k or count(SMALLEST) <= k:
        return SMALLEST, True
    return threshold, False


def stage_threshold(k: int, base: float, above: int, total: float, largest: float) -> float:
    """Return the threshold that an exponential tail's fit gives.

    Args:
        k: How many magnitudes are to reach it.
        base: Where the tail begins.
        above: How many magnitudes reach the base; more than 0.
        total: Their sum.
        largest: The largest magnitude.

    Returns:
        A float32 number larger than 0, and no larger than ``largest`` if that is possible.
    """
    fitted = base + (total / above - base) * math.log(above / k)
    return float(np.float32(max(min(fitted, largest), SMALLEST)))


def _reaching(sizes: F32, base: float) -> tuple[int, float]:
    """How many are at least as large as a base, and their sum."""
    reach = sizes >= np.float32(base)
    return int(np.count_nonzero(reach)), sum_blocks(np.where(reach, sizes, np.float32(0)))


def _bases(sample: F32, ranks: tuple[int, ...]) -> list[float]:
    """Where the tails of all stages begin."""
    largest_first = np.sort(sample)[::-1]
    return [0.0, *(max(float(largest_first[rank - 1]), SMALLEST) for rank in ranks)]
