"""About k large elements, by a threshold from a sample: Deep Gradient Compression's selection.

Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
Distributed Training", ICLR 2018. The threshold is the magnitude above which the sample has its
share of k. If far fewer elements reach it, it is lowered; if far more do, the k largest of those
are chosen exactly.

The sample has one element of each of m equal stretches of n // m elements: of stretch i the one at
(w * (n // m)) >> 32, where w is the upper half of i * 0x9E3779B97F4A7C15 modulo 2**64, a sequence
with no period that the elements could share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend
from ._selection import mark, sample_indices, take_largest, unscaled

FEWEST, MOST = 0.8, 1.3
"""Shares of k between which the number of selected elements is left as it is."""

ADJUSTMENTS = 10
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def most_selected(k: int) -> int:
    """Return how many elements `select_dgc` selects at most.

    Args:
        k: How many it aims at.
    """
    return int(MOST * k)


def select_dgc(
    x: Gradient,
    k: int,
    sample: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Send what reaches the sample's threshold, up to ten times lowered by a fifth.

    What is compared, sent and kept is as in :mod:`compressa.kernels.select`. Elements that are 0
    are not sent.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
        >>> indices, values = np.empty(1300, np.uint32), np.empty(1300, np.float32)
        >>> 800 <= select_dgc(x, 1000, 2000, indices, values) <= 1300
        True

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        k: How many to aim at, 1 to n.
        sample: How many elements to look at, 1 to n.
        indices: uint32[room], room = min(n, :func:`most_selected`); the first ``count`` are
            overwritten.
        values: float32[room]; the first ``count`` are overwritten.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Returns:
        count: How many are sent.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or a number is wrong.
    """
    check_gradient(x)
    if not 1 <= k <= x.size <= 2**32 or not 1 <= sample <= x.size:
        raise ValueError(
            f"k = {k} and sample = {sample} must lie in 1 to n = {x.size} (at most 2**32)"
        )
    room = min(x.size, most_selected(k))
    check_array("indices", indices, np.uint32, (room,), writable=True)
    check_array("values", values, np.float32, (room,), writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("dgc", x, indices, values, residual):
        options = {"residual": residual, "loss_scale": loss_scale}
        return int(kernel.select_dgc(x, k, sample, indices, values, **options))
    q = unscaled(x, residual, loss_scale)
    sizes, threshold, most = np.abs(q), 0.0, 0
    if np.isfinite(q).all():
        drawn = np.sort(sizes[sample_indices(q.size, sample)])[::-1]
        first = float(drawn[-(-k * sample // q.size) - 1])
        threshold, most = adjusted_threshold(
            k, first, lambda t: int(np.count_nonzero(sizes >= np.float32(t)))
        )
    found = take_largest(q, min(most, q.size), threshold, indices, values, residual, loss_scale)
    return found if found >= 0 else mark(indices, values)


def adjusted_threshold(
    k: int, threshold: float, count: Callable[[float], int]
) -> tuple[float, int]:
    """The threshold that is used, and how many elements at most.

    Args:
        k: How many are to reach it.
        threshold: The sample's.
        count: Says how many elements reach a threshold.

    Returns:
        A float32 number larger than 0, and k or :func:`most_selected` of it.
    """
    threshold = max(threshold, SMALLEST)
    reaching = count(threshold)
    for _ in range(ADJUSTMENTS):
        if reaching >= FEWEST * k or threshold == SMALLEST:
            break
        threshold = lowered(threshold)
        reaching = count(threshold)
    return threshold, k if reaching > MOST * k else most_selected(k)


def lowered(threshold: float) -> float:
    """The next threshold to try, a float32 number larger than 0."""
    return max(float(np.float32(FEWEST * threshold)), SMALLEST)
