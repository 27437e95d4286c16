"""Selection by threshold and by index; see :mod:`compressa.kernels.select`."""

from __future__ import annotations

from math import sqrt

import numpy as np

from .._arrays import F32, U32, Gradient
from ..select import Reference, scaled_threshold
from ..threads import over_slices
from ._candidates import BLOCK
from ._feedback import Factors, Values, factors_of, magnitude_bits
from ._jit import jit, lean, lean_nested
from ._listing import guessed, mark, threshold_bits
from ._selection import listing_of, select_largest
from ._unscaled import INFINITY, look
from ._values import bits_of
from ._view import first_of, view


@lean_nested
def _take_out(q: F32, low: int, indices: U32, values: F32, residual: F32 | None) -> None:
    """Move what a block has at some indices from the residual to ``values``."""
    for j in range(indices.size):
        at = np.int64(indices[j]) - low
        values[j] = q[at]
        if residual is not None and magnitude_bits(q[at]) < INFINITY:
            residual[at] = np.float32(0)


@jit
def _take_part(
    x: Values,
    indices: U32,
    values: F32,
    residual: F32 | None,
    factors: Factors,
    bounds: tuple[int, int],
) -> bool:
    """Take some of q from ``low`` to ``high`` out; return whether all of it is finite."""
    room, largest, done = np.empty(BLOCK, np.float32), np.uint32(0), 0
    for low in range(bounds[0], bounds[1], BLOCK):
        high = min(low + BLOCK, bounds[1])
        top = look(x, residual, factors, low, high, room, None, None, np.uint32(0))
        left, begin = view(residual, low, high), done
        q = first_of(left, view(room, 0, high - low))
        largest = max(largest, top)
        while done < indices.size and np.int64(indices[done]) < high:
            done += 1
        _take_out(q, low, view(indices, begin, done), view(values, begin, done), left)
    return bool(largest < INFINITY)


@lean
def _give_back(indices: U32, values: F32, residual: F32 | None) -> None:
    if residual is not None:
        for j in range(indices.size):
            if magnitude_bits(values[j]) < INFINITY:
                residual[indices[j]] = values[j]


@lean
def _rescale(indices: U32, values: F32, loss_scale: np.float32, residual: F32 | None) -> None:
    """Multiply by the loss scale; keep what that makes infinite."""
    for j in range(indices.size):
        q = values[j]
        values[j] = q * loss_scale
        if residual is not None and magnitude_bits(values[j]) >= INFINITY:
            residual[indices[j]] = q


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
    if relative_to == "one":
        floor = threshold_bits(threshold)
        count = select_largest(x, indices.size, floor, indices, values, residual, loss_scale)
        return count if count >= 0 else mark(indices, values)
    hint = guessed(x, residual, loss_scale, indices.size)
    squares = np.zeros(0, np.uint32) if relative_to == "rms" else None
    listing = listing_of(x, residual, loss_scale, hint, squares)
    if not listing.finite:
        return mark(indices, values)
    size = sqrt(listing.sums[0][1] / max(x.size, 1)) if relative_to == "rms" else listing.largest
    floor = threshold_bits(scaled_threshold(threshold, size, listing.largest))
    return listing.choose(indices.size, floor, (indices, values))


def select_at(
    x: Gradient,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    bits, factors, finite = bits_of(x), factors_of(loss_scale), []
    marked = indices[:1]
    before = residual[marked] if residual is not None else None

    def work(low: int, high: int) -> None:
        # Bounds of the same dtype: others would be compared with a wider copy of all indices.
        begin, end = np.searchsorted(indices, np.array([low, high], np.uint32))
        mine = indices[begin:end], values[begin:end]
        finite.append(_take_part(bits, *mine, residual, factors, (low, high)))

    over_slices(x.size, BLOCK, work)
    if not all(finite):
        _give_back(indices, values, residual)
        values[:1], values[1:] = np.nan, 0
        if residual is not None:
            residual[marked] = before
    elif loss_scale != 1:
        _rescale(indices, values, factors[0], residual)
