"""Stratified sampling in NumPy; see :mod:`compressa.kernels.strata`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U32


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:
    """See :func:`compressa.kernels.strata.stratified_indices`."""
    if not words.size:
        return
    borders = np.arange(words.size + 1, dtype=np.int64) * n // words.size
    sizes = np.diff(borders).astype(np.uint64)
    offsets = (words.astype(np.uint64) * sizes) >> np.uint64(32)
    out[:] = borders[:-1] + offsets.astype(np.int64)


def multiply_by_strata(values: F32, n: int) -> None:
    """See :func:`compressa.kernels.strata.multiply_by_strata`."""
    borders = np.arange(values.size + 1, dtype=np.int64) * n // max(values.size, 1)
    values *= np.diff(borders).astype(np.float32)
