"""Elements chosen by a threshold or by given indices; the others stay in the residual.

The arithmetic is that of :mod:`compressa.kernels.topk`: p = x + loss_scale * residual, q = p *
(1 / loss_scale), sent are q * loss_scale, kept are q, or 0 where it was sent. If any q is infinite
or NaN, the first value that is sent is NaN, and the residual of that element and of what is not
finite is left as it was.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend
from ._selection import keep_finite, mark, send, sum_blocks, take_largest, unscaled
from .bitpack import check_increasing

Reference = Literal["one", "rms", "max"]
"""What a threshold is relative to: 1, or a statistic of what it is compared with."""

_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def select_above(
    x: Gradient,
    threshold: float,
    indices: U32,
    values: F32,
    *,
    relative_to: Reference = "one",
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Find the elements with |q| >= threshold * reference; where there is no room, the largest.

    Ties at the end of the room go to the lowest index. If any q is not finite, one NaN at index 0
    is all that is found. The root mean square of q is that of the sum of squares in blocks of 2048,
    by 16 strided lanes and halving in float64, blocks in order. A product with a reference is
    rounded to float32, and is neither more than the largest |q| nor less than the smallest number
    above 0.

    Example:
        >>> import numpy as np
        >>> indices, values = np.empty(3, np.uint32), np.empty(3, np.float32)
        >>> count = select_above(np.array([1, -5, 2, 5], np.float32), 2.5, indices, values)
        >>> indices[:count].tolist(), values[:count].tolist()
        ([1, 3], [-5.0, 5.0])

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        threshold: The smallest |q| that is chosen, over the reference; not negative, and not NaN.
        indices: uint32[room], room at most n; the first ``count`` are overwritten.
        values: float32[room]; the first ``count`` are overwritten.
        relative_to: "one", or the root mean square ("rms") or the largest magnitude ("max") of q.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries, and the residual and the threshold do not.

    Returns:
        count: How many were found.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, the threshold, its reference or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    if not threshold >= 0:
        raise ValueError(f"threshold must not be negative or NaN, but is {threshold}")
    if relative_to not in get_args(Reference):
        known = ", ".join(get_args(Reference))
        raise ValueError(f"relative_to must be one of {known}, not {relative_to!r}")
    check_array("indices", indices, np.uint32, writable=True)
    if not indices.size <= x.size <= 2**32:
        raise ValueError(f"indices must have no more room than n = {x.size} (at most 2**32)")
    check_array("values", values, np.float32, indices.shape, writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("select", x, indices, values, residual):
        options = {"relative_to": relative_to, "residual": residual, "loss_scale": loss_scale}
        return int(kernel.select_above(x, threshold, indices, values, **options))
    q = unscaled(x, residual, loss_scale)
    if relative_to != "one" and np.isfinite(q).all():
        largest = float(np.abs(q).max(initial=0.0))
        squares = sum_blocks(q.astype(np.float64) ** 2)
        rms = math.sqrt(squares / max(q.size, 1))
        reference = rms if relative_to == "rms" else largest
        threshold = scaled_threshold(threshold, reference, largest)
    count = take_largest(q, indices.size, threshold, indices, values, residual, loss_scale)
    return count if count >= 0 else mark(indices, values)


def scaled_threshold(threshold: float, reference: float, largest: float) -> float:
    """Return threshold times reference, but no more than the largest magnitude, and more than 0.

    The largest is what comes of infinity times 0, too: nothing is above NaN, so it comes first.

    Args:
        threshold: In multiples of the reference; not negative, and not NaN.
        reference: The root mean square of the vector, or its largest magnitude.
        largest: The largest magnitude.

    Returns:
        A number of float32.
    """
    return float(np.float32(max(min(largest, threshold * reference), _SMALLEST)))


def select_at(
    x: Gradient,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Send the elements at given indices, and keep the others for later.

    If any q is not finite, all values but the first, which is NaN, are 0.

    Example:
        >>> import numpy as np
        >>> residual, values = np.ones(4, np.float32), np.empty(2, np.float32)
        >>> x = np.array([1, -5, 2, 5], np.float32)
        >>> select_at(x, np.array([0, 3], np.uint32), values, residual=residual)
        >>> values.tolist(), residual.tolist()
        ([2.0, 6.0], [0.0, -4.0, 3.0, 0.0])

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        indices: uint32[k], increasing, each below n.
        values: float32[k], overwritten with q * loss_scale at those indices.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong, or the indices are not as they
            should be; nothing is written then.
    """
    check_gradient(x)
    check_array("indices", indices, np.uint32)
    check_array("values", values, np.float32, indices.shape, writable=True)
    check_feedback(residual, x.size, loss_scale)
    check_increasing(indices, x.size)
    if kernel := backend("select", x, indices, values, residual):
        kernel.select_at(x, indices, values, residual=residual, loss_scale=loss_scale)
        return
    q = unscaled(x, residual, loss_scale)
    if np.isfinite(q).all():
        send(q, indices, values, residual, loss_scale)
        return
    keep_finite(q, indices[:1], residual)
    values[:1], values[1:] = np.nan, 0
