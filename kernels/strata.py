"""Random-k with one index per stratum: sorted, distinct and drawn in parallel.

range(n) is cut into k strata of n/k elements, and each gives one index, uniformly. Every element is
sent with probability of about k/n, so that the bounds of sampling without replacement hold
(times n/k unbiased with variance n/k - 1, unscaled with a residual a contraction k/n; exactly where
k divides n). With shared random words every rank picks the same indices: none are sent, and the
values can be summed on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import F32, U32, check_array
from ._backends import backend


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:
    """Turn k uniform words into k increasing indices below ``n``.

    Stratum i is [i*n // k, (i+1)*n // k), in integers; its index is
    low + ((words[i] * (high - low)) >> 32). (Lemire's multiply-and-shift: the bias per element is
    below (high - low) / 2**32.)

    Example:
        >>> import numpy as np
        >>> out = np.empty(2, np.int64)
        >>> stratified_indices(out, 10, np.array([0, 2**32 - 1], np.uint32))
        >>> out.tolist()
        [0, 9]

    Args:
        out: uint32[k] or int64[k], overwritten.
        n: Number of elements to choose from; at least k, at most 2**32, and n * k below 2**63.
        words: uint32[k], uniform, as from :func:`compressa.kernels.random_words`.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or ``n`` is out of range.
    """
    check_array("words", words, np.uint32)
    dtype = np.int64 if out.dtype == np.int64 else np.uint32
    check_array("out", out, dtype, (words.size,), writable=True)
    if not words.size <= n <= 2**32 or n * words.size >= 2**63:
        raise ValueError(f"n must lie between k = {words.size} and 2**32, and n * k below 2**63")
    if kernel := backend("strata", out, words):
        kernel.stratified_indices(out, n, words)
        return
    if not words.size:
        return
    borders = np.arange(words.size + 1, dtype=np.int64) * n // words.size
    sizes = np.diff(borders).astype(np.uint64)
    offsets = (words.astype(np.uint64) * sizes) >> np.uint64(32)
    out[:] = borders[:-1] + offsets.astype(np.int64)


def multiply_by_strata(values: F32, n: int) -> None:
    """values[i] *= number of elements in stratum i: one over the probability of each of them.

    Args:
        values: float32[k], updated in place.
        n: Number of elements to choose from; at least k, and n * k below 2**63.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or ``n`` is out of range.
    """
    check_array("values", values, np.float32, writable=True)
    if not values.size <= n or n * values.size >= 2**63:
        raise ValueError(f"n must be at least k = {values.size}, and n * k below 2**63, not {n}")
    if kernel := backend("strata", values):
        kernel.multiply_by_strata(values, n)
        return
    borders = np.arange(values.size + 1, dtype=np.int64) * n // max(values.size, 1)
    values *= np.diff(borders).astype(np.float32)
