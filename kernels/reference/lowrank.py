"""Low-rank arithmetic in NumPy; see :mod:`compressa.kernels.lowrank`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..lowrank import DEPENDENT
from ._feedback import remainder
from ._tree import tree_sum


def _dot(a: F32, b: F32) -> float:
    return tree_sum(a.astype(np.float64) * b.astype(np.float64))


def _project_out(p: F32, j: int) -> None:
    for i in range(j):
        factor = _dot(p[i], p[j])
        p[j] = p[j].astype(np.float64) - factor * p[i].astype(np.float64)


def orthonormalize(p: F32) -> None:
    """See :func:`compressa.kernels.lowrank.orthonormalize`."""
    for j in range(p.shape[0]):
        before = np.sqrt(_dot(p[j], p[j]))
        _project_out(p, j)
        _project_out(p, j)
        after = np.sqrt(_dot(p[j], p[j]))
        if not np.isfinite(after):
            p[j] = np.nan
        elif after > DEPENDENT * before:
            p[j] = p[j].astype(np.float64) / after
        else:
            p[j] = 0


def low_rank_product(p: F32, q: F32, out: F32) -> None:
    """See :func:`compressa.kernels.lowrank.low_rank_product`."""
    out[:] = np.outer(p[0], q[0])
    for k in range(1, p.shape[0]):
        out += np.outer(p[k], q[k])


def split_low_rank(m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    product = np.empty_like(m)
    low_rank_product(p, q, product)
    residual[:] = remainder(m, product, scale)
    m[:] = product


def keep_directions(q: F32, kept: F32) -> bool:
    """See :func:`compressa.kernels.lowrank.keep_directions`."""
    alive = q.any(axis=1)
    kept[alive] = q[alive]
    return bool(alive.all())
