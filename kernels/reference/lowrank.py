"""Low-rank arithmetic in NumPy; see :mod:`compressa.kernels.lowrank`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..lowrank import DEPENDENT, PANEL
from ._feedback import effective, remainder
from ._tree import LANES, tree_sum

_BLOCK = 2048


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


def left_factor(x: F32, q: F32, p: F32, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.left_factor`."""
    x[:] = effective(x, residual, scale)
    p[:] = 0
    for low in range(0, x.shape[1], _BLOCK):
        block = slice(low, low + _BLOCK)
        for k in range(q.shape[0]):
            p[k] += _sum_lanes(q[k, block] * x[:, block])


def _sum_lanes(terms: F32) -> F32:
    """Sum along rows by 16 strided lanes, and then by halving, in float32."""
    groups = -(-terms.shape[1] // LANES)
    padded = np.zeros((terms.shape[0], groups * LANES), np.float32)
    padded[:, : terms.shape[1]] = terms
    lanes = np.zeros((terms.shape[0], LANES), np.float32)
    for first in range(0, padded.shape[1], LANES):
        lanes += padded[:, first : first + LANES]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.lowrank.right_factor`."""
    x[:] = effective(x, residual, scale)
    q[:] = 0
    for low in range(0, x.shape[0], PANEL):
        panel = np.zeros_like(q)
        for i in range(low, min(low + PANEL, x.shape[0])):
            panel += np.outer(p[:, i], x[i])
        q += panel


def split_low_rank(
    m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0, *, held: bool = False
) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    product = np.empty_like(m)
    low_rank_product(p, q, product)
    rest = remainder(m, product, scale)
    residual[:] = residual + rest if held else rest
    m[:] = product


def keep_directions(q: F32, kept: F32) -> bool:
    """See :func:`compressa.kernels.lowrank.keep_directions`."""
    alive = q.any(axis=1)
    kept[alive] = q[alive]
    return bool(alive.all())
