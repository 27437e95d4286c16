"""Stratified sampling in NumPy; see :mod:`compressa.kernels.strata`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import U32


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:
    """See :func:`compressa.kernels.strata.stratified_indices`."""
    if not words.size:
        return
    borders = np.arange(words.size + 1, dtype=np.int64) * n // words.size
    sizes = np.diff(borders).astype(np.uint64)
    offsets = (words.astype(np.uint64) * sizes) >> np.uint64(32)
    out[:] = borders[:-1] + offsets.astype(np.int64)
