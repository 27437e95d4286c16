"""The largest of what reaches a floor: what top-k and thresholds have in common."""

from __future__ import annotations

import numpy as np

from ._arrays import F32, F64, U32, Gradient
from ._numpy import effective, tree_sum, widened

_BLOCK = 2048


def unscaled(x: Gradient, residual: F32 | None, loss_scale: float) -> F32:
    """Return q = (x + loss_scale * residual) * (1 / loss_scale), float32[n].

    Args:
        x: float32[n], float16[n], or bfloat16 as uint16[n].
        residual: float32[n]; None for zeros.
        loss_scale: Loss scale that ``x`` carries and the residual does not.
    """
    return effective(widened(x), residual, loss_scale) * (np.float32(1) / np.float32(loss_scale))


def sample_indices(n: int, sample: int) -> U32:
    """Return the indices of one element from each of some stretches of equal length.

    Args:
        n: Elements of the vector; the last ``n % sample`` of them are in no stretch.
        sample: How many stretches, at most n.

    Returns:
        uint32[sample], increasing.
    """
    stretch = np.uint64(n // sample)
    numbers = np.arange(sample, dtype=np.uint64)
    words = (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return (numbers * stretch + ((words * stretch) >> np.uint64(32))).astype(np.uint32)


def send(q: F32, indices: U32, values: F32, residual: F32 | None, loss_scale: float) -> None:
    """Send q at some indices, and keep the others, and what overflows on the way.

    Args:
        q: float32[n], unscaled.
        indices: uint32[k].
        values: float32[k], overwritten with what is sent, times the loss scale.
        residual: float32[n], overwritten with what is kept, unscaled; None to keep nothing.
        loss_scale: The loss scale.
    """
    values[:] = q[indices] * np.float32(loss_scale)
    if residual is not None:
        residual[:] = q
        residual[indices] = np.where(np.isfinite(values), 0, q[indices])


def keep_finite(q: F32, marked: U32, residual: F32 | None) -> None:
    """Keep q where it is finite, but not at the marked index, which will carry a NaN.

    Args:
        q: float32[n], unscaled.
        marked: uint32[1].
        residual: float32[n], which stays as it is elsewhere; None to keep nothing.
    """
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

    Args:
        q: float32[n], unscaled.
        most: How many at most; of equal ones, the first are taken.
        floor: Rounded to float32.
        indices: uint32, with room for as many as are sent; increasing afterwards.
        values: float32, as long; see `send`.
        residual: As of `send`.
        loss_scale: The loss scale.

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

    Args:
        indices: uint32[room]; the first is overwritten with 0.
        values: float32[room]; the first is overwritten with NaN.

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
