"""Stratified sampling on a GPU; see :mod:`compressa.kernels.strata`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import F32, U32, block_count
from ._device import CTA, launch

_BATCH = 4 * CTA  # strata that a block of threads takes at a time


def stratified_indices(out: npt.NDArray[Any], n: int, words: U32) -> None:
    name = "stratified_i64" if out.dtype == np.int64 else "stratified_u32"
    k = words.size
    launch("strata", name, block_count(k, _BATCH), CTA, out, np.int64(n), words, np.int64(k))


def multiply_by_strata(values: F32, n: int) -> None:
    k = values.size
    launch(
        "strata",
        "multiply_by_strata",
        block_count(k, _BATCH),
        CTA,
        values,
        np.int64(n),
        np.int64(k),
    )
