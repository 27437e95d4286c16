"""Low-rank arithmetic in NumPy; see :mod:`compressa.kernels.lowrank`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..lowrank import DEPENDENT
from ._feedback import remainder
from ._tree import LANES, tree_sum


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


def _lane_dots(q: F32, m: F32) -> F32:
    """Row by row of ``m``: the dot product with ``q`` by 16 lanes in float32."""
    blocks = -(-q.size // LANES)
    terms = np.zeros((m.shape[0], blocks * LANES), np.float32)
    terms[:, : q.size] = q * m
    lanes = np.zeros((m.shape[0], LANES), np.float32)
    for block in range(blocks):
        lanes += terms[:, block * LANES : (block + 1) * LANES]
    half = LANES // 2
    while half:
        lanes = lanes[:, :half] + lanes[:, half:]
        half //= 2
    return lanes[:, 0]


def absorb(
    residual: F32,
    gradient: F32,
    sent: tuple[F32, F32] | None,
    q: F32,
    p: F32,
    *,
    back: float = 1.0,
    scale: float = 1.0,
) -> None:
    """See :func:`compressa.kernels.lowrank.absorb`."""
    product = np.zeros_like(residual)
    if sent is not None:
        low_rank_product(*sent, product)
    kept = np.float32(scale) * remainder(residual, product, back)
    finite = np.isfinite(gradient)
    residual[:] = np.where(finite, gradient + kept, kept)
    for k in range(q.shape[0]):
        p[k] = np.where(finite.all(axis=1), _lane_dots(q[k], residual), np.float32(np.nan))


def subtract_low_rank(m: F32, p: F32, q: F32, back: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.subtract_low_rank`."""
    product = np.empty_like(m)
    low_rank_product(p, q, product)
    m[:] = remainder(m, product, back)
