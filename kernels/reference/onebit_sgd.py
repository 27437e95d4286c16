"""Signs with two means in NumPy; see :mod:`compressa.kernels.onebit_sgd`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U8, Gradient
from ._feedback import combine, effective, remainder, widened
from ._tree import tree_sum

Mask = npt.NDArray[np.bool_]


def _groups(n: int, group: int) -> Iterator[tuple[int, slice, slice]]:
    """Number, elements and bytes of each group."""
    start = 0
    for g, low in enumerate(range(0, n, group)):
        stop = start + -(-min(group, n - low) // 8)
        yield g, slice(low, low + group), slice(start, stop)
        start = stop


def _mean(p: F32, chosen: Mask) -> np.float32:
    total = tree_sum(np.where(chosen, p, np.float32(0)).astype(np.float64))
    if not np.isfinite(total):
        return np.float32(np.nan)
    return np.float32(total / chosen.sum()) if chosen.any() else np.float32(0)


def _pack(negative: Mask) -> U8:
    width = -(-negative.size // 8)
    planes = np.zeros(8 * width, np.bool_)
    planes[: negative.size] = negative
    return np.packbits(planes.reshape(8, width).T, axis=1, bitorder="little").ravel()


def _decode(bits: U8, size: int, means: F32) -> F32:
    negative = np.unpackbits(bits[:, None], axis=1, bitorder="little").T.ravel()[:size]
    decoded: F32 = np.where(negative, means[0], means[1])
    return decoded


def two_means_quantize(
    x: Gradient,
    bits: U8,
    means: F32,
    *,
    group: int,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.onebit_sgd.two_means_quantize`."""
    for g, elements, places in _groups(x.size, group):
        left = None if residual is None else residual[elements]
        p = effective(widened(x[elements]), left, scale)
        pair = means[2 * g : 2 * g + 2]
        pair[:] = _mean(p, p < 0), _mean(p, ~(p < 0))
        if np.isnan(pair).any():
            pair[:] = np.nan
            bits[places] = 0
            continue
        bits[places] = _pack(p < 0)
        if left is not None:
            left[:] = remainder(p, _decode(bits[places], p.size, pair), scale)


def two_means_dequantize(
    bits: U8, means: F32, out: F32, *, group: int, weight: float = 1.0, add: bool = False
) -> None:
    """See :func:`compressa.kernels.onebit_sgd.two_means_dequantize`."""
    for g, elements, places in _groups(out.size, group):
        part = out[elements]
        combine(part, _decode(bits[places], part.size, means[2 * g : 2 * g + 2]), weight, add)
