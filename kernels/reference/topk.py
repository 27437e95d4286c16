"""Top-k in NumPy; see :mod:`compressa.kernels.topk`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ._feedback import remainder
from ._selection import take_largest, unscaled


def select_top_k(
    x: Gradient,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.topk.select_top_k`."""
    q = unscaled(x, residual, scale)
    if take_largest(q, k, 0.0, indices, values, residual, scale) < 0 and k:
        indices[:] = np.arange(k)
        values[0], values[1:] = np.nan, 0


def scatter_add(indices: U32, values: F32, out: F32, *, weight: float = 1.0) -> None:
    """See :func:`compressa.kernels.topk.scatter_add`."""
    np.add.at(out, indices, np.float32(weight) * values)


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.topk.return_unsent`."""
    arrived = np.where(np.isfinite(sent), sent, np.float32(0))
    lost = remainder(exact, arrived, scale)
    known = np.isfinite(exact) & (lost != 0)
    residual[indices[known]] += lost[known]
