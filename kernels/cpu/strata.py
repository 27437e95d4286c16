"""Stratified sampling for NumPy arrays; see :mod:`compressa.kernels.strata`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import U32
from ._jit import jit

_SHIFT = np.uint64(32)


@jit
def _stratified(out: npt.NDArray[Any], n: int, words: U32) -> None:
    low = 0
    for i in range(words.size):
        high = (i + 1) * n // words.size
        offset = (np.uint64(words[i]) * np.uint64(high - low)) >> _SHIFT
        out[i] = low + np.int64(offset)
        low = high


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:
    """See :func:`compressa.kernels.strata.stratified_indices`."""
    _stratified(out, n, words)
