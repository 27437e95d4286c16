"""Stratified sampling for NumPy arrays; see :mod:`compressa.kernels.strata`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U32
from ..threads import over_slices
from ._jit import jit

_SHIFT = np.uint64(32)


@jit
def _stratified(out: npt.NDArray[Any], n: int, k: int, first: int, words: U32) -> None:
    """The indices of the strata from ``first`` on; a border is floor(i * n / k)."""
    # A division per border would take longer than all else: carry what it leaves over instead.
    step, more = n // k, n % k
    low, over = first * n // k, first * n % k
    for i in range(words.size):
        high, over = low + step, over + more
        if over >= k:
            high, over = high + 1, over - k
        offset = (np.uint64(words[i]) * np.uint64(high - low)) >> _SHIFT
        out[i] = low + np.int64(offset)
        low = high


@jit
def _multiply(values: F32, n: int) -> None:
    step, more, over = n // values.size, n % values.size, 0
    for i in range(values.size):
        over += more
        size = step + int(over >= values.size)
        over -= values.size * int(over >= values.size)
        values[i] *= np.float32(size)


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:

    def work(low: int, high: int) -> None:
        _stratified(out[low:high], n, max(words.size, 1), low, words[low:high])

    over_slices(words.size, 1, work)


def multiply_by_strata(values: F32, n: int) -> None:
    if values.size:
        _multiply(values, n)
