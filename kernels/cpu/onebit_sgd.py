"""Signs with two means for NumPy arrays; see :mod:`compressa.kernels.onebit_sgd`.

A group may be as long as the gradient, so nothing of its length is kept: it is read twice, in
pieces for the two sums and in planes for the signs.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U8, Gradient
from ..threads import over_slices
from ._feedback import Factors, Values, effective, factors_of
from ._jit import jit, lean, lean_nested, nested
from ._sums import LANES, add_terms, halve
from ._values import bits_of
from ._view import view

_PIECE = 512  # a multiple of the lanes
_NAN = np.float32(np.nan)
_ZERO = np.float32(0)


@lean_nested
def _write_terms(
    x: Values, residual: F32 | None, loss_scale: np.float32, negatives: F64, others: F64
) -> int:
    """Write the terms of both sums; return how many elements are negative."""
    count = 0
    for i in range(x.size):
        p = effective(x, residual, loss_scale, i)
        negatives[i] = np.float64(p) if p < _ZERO else 0.0
        others[i] = 0.0 if p < _ZERO else np.float64(p)
        count += int(p < _ZERO)
    return count


@lean_nested
def _mean(total: float, count: int) -> np.float32:
    return np.float32(total / count) if count else _ZERO


@nested
def _means(
    x: Values, residual: F32 | None, loss_scale: np.float32, terms: F64, lanes: F64
) -> tuple[np.float32, np.float32]:
    """Both means of one group; both NaN if an element is not finite."""
    count, below, above = 0, view(lanes, 0, LANES), view(lanes, LANES, 2 * LANES)
    lanes[:] = 0.0
    for low in range(0, x.size, _PIECE):
        high = min(low + _PIECE, x.size)
        negatives, others = view(terms, 0, high - low), view(terms, _PIECE, _PIECE + high - low)
        piece, left = view(x, low, high), view(residual, low, high)
        count += _write_terms(piece, left, loss_scale, negatives, others)
        add_terms(negatives, below)
        add_terms(others, above)
    negative, other = halve(below), halve(above)
    if not (np.isfinite(negative) and np.isfinite(other)):
        return _NAN, _NAN
    return _mean(negative, count), _mean(other, x.size - count)


@lean_nested
def _pack_plane(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    means: tuple[np.float32, np.float32],
    plane: int,
    bits: U8,
) -> None:
    """Set bit ``plane`` of the bytes by the signs of as many elements, and keep their errors."""
    for i in range(x.size):
        p = effective(x, residual, factors[0], i)
        below = p < _ZERO
        bits[i] |= np.uint8(np.uint8(below) << np.uint8(plane))
        if residual is not None:
            residual[i] = (p - (means[0] if below else means[1])) * factors[1]


@jit
def _quantize(
    x: Values,
    residual: F32 | None,
    factors: Factors,
    bits: U8,
    means: F32,
    group: int,
) -> None:
    terms, lanes = np.empty(2 * _PIECE), np.empty(2 * LANES)
    for g in range(means.size // 2):
        low, high = g * group, min((g + 1) * group, x.size)
        now, left = view(x, low, high), view(residual, low, high)
        width, start = (high - low + 7) // 8, g * ((group + 7) // 8)
        packed = view(bits, start, start + width)
        packed[:] = np.uint8(0)
        pair = _means(now, left, factors[0], terms, lanes)
        means[2 * g], means[2 * g + 1] = pair
        if np.isnan(pair[0]):
            continue
        for plane in range(8):
            first = min(plane * width, now.size)
            last = min(first + width, now.size)
            kept, some = view(left, first, last), view(packed, 0, last - first)
            _pack_plane(view(now, first, last), kept, factors, pair, plane, some)


@lean_nested
def _decode_plane(
    bits: U8, plane: int, negative: np.float32, other: np.float32, add: bool, out: F32
) -> None:
    for i in range(out.size):
        below = (bits[i] >> np.uint8(plane)) & np.uint8(1)
        value = negative if below else other
        out[i] = out[i] + value if add else value


@lean
def _dequantize(bits: U8, means: F32, out: F32, group: int, weight: np.float32, add: bool) -> None:
    for g in range(means.size // 2):
        low, high = g * group, min((g + 1) * group, out.size)
        width, start = (high - low + 7) // 8, g * ((group + 7) // 8)
        packed = view(bits, start, start + width)
        negative, other = weight * means[2 * g], weight * means[2 * g + 1]
        for plane in range(8):
            first = min(low + plane * width, high)
            last = min(first + width, high)
            _decode_plane(packed, plane, negative, other, add, view(out, first, last))


def two_means_quantize(
    x: Gradient,
    bits: U8,
    means: F32,
    *,
    group: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    values, factors = bits_of(x), factors_of(loss_scale)

    def work(low: int, high: int) -> None:
        first, last = low // group, -(-high // group)
        kept = None if residual is None else residual[low:high]
        packed = bits[first * _width(group) : last * _width(group)]
        _quantize(values[low:high], kept, factors, packed, means[2 * first : 2 * last], group)

    over_slices(x.size, group, work)


def two_means_dequantize(
    bits: U8, means: F32, out: F32, *, group: int, weight: float = 1.0, add: bool = False
) -> None:
    factor = np.float32(weight)

    def work(low: int, high: int) -> None:
        first, last = low // group, -(-high // group)
        packed = bits[first * _width(group) : last * _width(group)]
        _dequantize(packed, means[2 * first : 2 * last], out[low:high], group, factor, add)

    over_slices(out.size, group, work)


def _width(group: int) -> int:
    return (group + 7) // 8
