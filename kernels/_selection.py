"""The largest of what reaches a floor: what top-k and thresholds have in common."""

from __future__ import annotations

import numpy as np

from ._arrays import F32, F64, U32, Gradient
from ._numpy import effective, tree_sum, widened

_BLOCK = 2048


def unscaled(x: Gradient, residual: F32 | None, loss_scale: float) -> F32:
    """Return q = (x + loss_scale * residual) * (1 / loss_scale)."""
    return effective(widened(x), residual, loss_scale) * (np.float32(1) / np.float32(loss_scale))


def sample_places(n: int, sample: int) -> U32:
    """The indices of one element from each of so many stretches of equal length."""
    stretch = np.uint64(n // sample)
    numbers = np.arange(sample, dtype=np.uint64)
    words = (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return (numbers * stretch + ((words * stretch) >> np.uint64(32))).astype(np.uint32)


def send(q: F32, indices: U32, values: F32, residual: F32 | None, loss_scale: float) -> None:
    """Send q at some indices, and keep the others, and what overflows on the way."""
    values[:] = q[indices] * np.float32(loss_scale)
    if residual is not None:
        residual[:] = q
        residual[indices] = np.where(np.isfinite(values), 0, q[indices])


def keep_finite(q: F32, marked: U32, residual: F32 | None) -> None:
    """Keep q where it is finite, but not at the marked index, which will carry a NaN."""
    if residual is not None:
        keep = np.isfinite(q)
        keep[marked] = False
        residual[keep] = q[keep]


def take_largest(
    q: F32,
    most: int,
    floor: float,
    indices: U32,
    values: F32,
    residual: F32 | None,
    loss_scale: float,
) -> int:
    """Send the ``most`` largest |q| that are at least ``floor``, and keep the others.

    Returns:
        How many are sent; -1 if anything is not finite: then nothing is.
    """
    if not np.isfinite(q).all():
        keep_finite(q, np.zeros(1, np.uint32), residual)
        return -1
    largest_first = np.argsort(-np.abs(q), kind="stable")
    reaching = int(np.count_nonzero(np.abs(q) >= np.float32(floor)))
    count = min(most, reaching)
    indices[:count] = np.sort(largest_first[:count])
    send(q, indices[:count], values[:count], residual, loss_scale)
    return count


def mark(indices: U32, values: F32) -> int:
    """What a selection of no fixed size finds where something is not finite: a NaN, if it has room.

    Returns:
        How many it finds.
    """
    indices[:1], values[:1] = 0, np.nan
    return min(indices.size, 1)


def sum_blocks(terms: F32 | F64) -> float:
    """Sum blocks by the tree, and the blocks in order."""
    total = 0.0
    for low in range(0, terms.size, _BLOCK):
        total += tree_sum(terms[low : low + _BLOCK].astype(np.float64))
    return total
