"""The sum of two sparse vectors on a GPU; see :mod:`compressa.kernels.sparse_sum`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import F32, U32, block_count
from ._arguments import i32, i64
from ._device import CTA, device, launch

_TILE = 4 * CTA  # as in sparse_sum.cu


def sum_sparse(
    indices_a: U32, values_a: F32, indices_b: U32, values_b: F32, indices: U32, values: F32
) -> None:
    a, b = (indices_a, values_a, i64(indices_a.size)), (indices_b, values_b, i64(indices_b.size))
    _merge(a, b, 1, indices, values)
    _merge(b, a, 0, indices, values)


def _merge(
    own: tuple[Any, ...], others: tuple[Any, ...], is_first: int, indices: U32, values: F32
) -> None:
    tiles = block_count(int(own[2]), _TILE)
    if not tiles:
        return
    counts = device().empty(tiles + 1, np.int64)
    count = own[0], own[2], others[0], others[2], i64(tiles), counts
    launch("sparse_sum", "count_shared", tiles, CTA, *count)
    launch("sparse_sum", "scan_counts", 1, CTA, counts, i64(tiles))
    cut = i64(tiles), counts, i32(is_first)
    launch("sparse_sum", "merge", tiles, CTA, *own, *others, *cut, indices, values)
