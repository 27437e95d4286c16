"""One bit per element with two means per group: the quantiser of 1-bit SGD.

Within each group, negative elements become the mean of the negative ones, all others the mean of
the others (Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, with a column of a weight
matrix as group). Given the signs, these two values minimise the error; so it is a projection, the
errors of either sign sum to 0, and ||p - C(p)||^2 = ||p||^2 - ||C(p)||^2.

Bits on the wire, group after group, each beginning at a byte, planar: of a group of ``len``
elements with m = ceil(len / 8), bit j of byte i is 1 where element j*m + i is negative (p < 0, so
not for -0), and 0 where there is no such element.

Exact arithmetic:

* p = x + loss_scale * residual in float32, product rounded first; p = x without a residual.
* Both sums in float64 by a fixed tree over the group, with 0 for the elements of the other sign:
  lane l of 16 sums elements l, l+16, l+32, ... in order; then lane j takes in lane j + half for
  half = 8, 4, 2, 1. A mean is float32(sum / count), and 0 where there are no such elements. If any
  p is infinite or NaN, both means are NaN, all bits are 0, and the residual is left as it was.
* New residual = (p - decode) * (1 / loss_scale) in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ._arrays import F32, U8, Gradient, block_count, check_array, check_feedback, check_gradient
from ._backends import backend
from ._numpy import (
    Bits,
    combine,
    effective,
    pack_planes,
    remainder,
    tree_sum,
    unpack_planes,
    widened,
)


def group_sign_bytes(n: int, group: int) -> int:
    """Bytes of the signs of ``n`` elements, when each group begins at a byte.

    Args:
        n: Number of elements.
        group: Elements per group; the last may have fewer.

    Raises:
        ValueError: ``group`` is not positive.
    """
    if group < 1:
        raise ValueError(f"group must be positive, not {group}")
    return n // group * ((group + 7) // 8) + (n % group + 7) // 8


def two_means_quantize(
    x: Gradient,
    bits: U8,
    means: F32,
    *,
    group: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Reduce ``x``, plus what earlier steps left behind, to signs, and keep what is left now.

    Example:
        >>> import numpy as np
        >>> bits, means = np.empty(1, np.uint8), np.empty(2, np.float32)
        >>> two_means_quantize(np.array([1, -2, 3, -6], np.float32), bits, means, group=4)
        >>> bits.tolist(), means.tolist()
        ([10], [-4.0, 2.0])

    Args:
        x: float32[n], float16[n], or uint16[n] with the bits of bfloat16.
        bits: uint8[group_sign_bytes(n, group)], overwritten.
        means: float32[2 * ceil(n / group)], overwritten: per group that of the negative elements,
            then that of the others.
        group: Elements per group.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``group`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    check_array("bits", bits, np.uint8, (group_sign_bytes(x.size, group),), writable=True)
    check_array("means", means, np.float32, (2 * block_count(x.size, group),), writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("onebit_sgd", x, bits, means, residual):
        kernel.two_means_quantize(
            x, bits, means, group=group, residual=residual, loss_scale=loss_scale
        )
        return
    for g, elements, signs in _groups(x.size, group):
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, loss_scale)
        pair = means[2 * g : 2 * g + 2]
        pair[:] = _mean(p, p < 0), _mean(p, ~(p < 0))
        if np.isnan(pair).any():
            pair[:] = np.nan
            bits[signs] = 0
            continue
        bits[signs] = pack_planes(p < 0)
        if left is not None:
            left[:] = remainder(p, _decode(bits[signs], p.size, pair), loss_scale)


def two_means_dequantize(
    bits: U8, means: F32, out: F32, *, group: int, weight: float = 1.0, add: bool = False
) -> None:
    """Decode into ``out``, or add to it: out (+)= weight * mean, each step rounded.

    Any bits and means are valid input.

    Args:
        bits: uint8[group_sign_bytes(n, group)].
        means: float32[2 * ceil(n / group)].
        out: float32[n], overwritten, or added to.
        group: Elements per group.
        weight: Factor on every decoded value.
        add: Whether to add to what ``out`` holds.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``group`` is wrong.
    """
    check_array("out", out, np.float32, writable=True)
    check_array("bits", bits, np.uint8, (group_sign_bytes(out.size, group),))
    check_array("means", means, np.float32, (2 * block_count(out.size, group),))
    if kernel := backend("onebit_sgd", bits, means, out):
        kernel.two_means_dequantize(bits, means, out, group=group, weight=weight, add=add)
        return
    for g, elements, signs in _groups(out.size, group):
        part = out[elements]
        combine(part, _decode(bits[signs], part.size, means[2 * g : 2 * g + 2]), weight, add)


def _groups(n: int, group: int) -> Iterator[tuple[int, slice, slice]]:
    """Number, elements and bytes of each group."""
    start = 0
    for g, low in enumerate(range(0, n, group)):
        stop = start + -(-min(group, n - low) // 8)
        yield g, slice(low, low + group), slice(start, stop)
        start = stop


def _mean(p: F32, chosen: Bits) -> np.float32:
    total = tree_sum(np.where(chosen, p, np.float32(0)).astype(np.float64))
    if not np.isfinite(total):
        return np.float32(np.nan)
    return np.float32(total / chosen.sum()) if chosen.any() else np.float32(0)


def _decode(bits: U8, size: int, means: F32) -> F32:
    decoded: F32 = np.where(unpack_planes(bits, size), means[0], means[1])
    return decoded
