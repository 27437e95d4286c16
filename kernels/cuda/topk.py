"""Top-k on a GPU; see :mod:`compressa.kernels.topk` and `_select.py`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient, block_count
from ._arguments import feedback, i64
from ._device import CTA, device, launch
from ._select import select_largest

_PART = 64 * CTA  # indices; as in topk.cu


def select_top_k(
    x: Gradient,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    if x.size:
        select_largest(x, 0.0, indices, values, residual, loss_scale, fixed=True)


def scatter_add(indices: U32, values: F32, out: F32, *, weight: float = 1.0) -> None:
    """Indices that increase, as those of all selections do, are distinct and need no order."""
    count, parts = i64(indices.size), block_count(indices.size, _PART)
    disorder = device().empty(parts, np.uint32)
    launch("topk", "find_disorder", parts, CTA, indices, count, disorder)
    to = out, i64(out.size), np.float32(weight)
    blocks = block_count(indices.size, CTA)
    launch("topk", "scatter_add", blocks, CTA, indices, values, count, *to, disorder)


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, loss_scale: float = 1.0
) -> None:
    pairs = indices, exact, sent, i64(indices.size)
    to, back = (residual, i64(residual.size)), feedback(residual, loss_scale)[2]
    launch("topk", "return_unsent", block_count(indices.size, CTA), CTA, *to, *pairs, back)
