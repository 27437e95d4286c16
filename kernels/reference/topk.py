"""Top-k in NumPy; see :mod:`compressa.kernels.topk`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32
from ._feedback import effective, remainder


def select_top_k(
    x: F32,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.topk.select_top_k`."""
    p = effective(x, residual, scale)
    if not np.isfinite(p).all():
        indices[:] = np.arange(k)
        values[:] = np.nan
        return
    largest_first = np.argsort(-np.abs(p), kind="stable")
    indices[:] = np.sort(largest_first[:k])
    values[:] = p[indices]
    if residual is not None:
        residual[:] = p * (np.float32(1) / np.float32(scale))
        residual[indices] = 0


def scatter_add(indices: U32, values: F32, out: F32, *, weight: float = 1.0) -> None:
    """See :func:`compressa.kernels.topk.scatter_add`."""
    np.add.at(out, indices, np.float32(weight) * values)


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.topk.return_unsent`."""
    arrived = np.where(np.isfinite(sent), sent, np.float32(0))
    lost = remainder(exact, arrived, scale)
    known = np.isfinite(exact)
    residual[indices[known]] = lost[known]
