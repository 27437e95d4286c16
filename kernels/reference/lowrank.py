"""Low-rank arithmetic in NumPy; see :mod:`compressa.kernels.lowrank`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64, U32
from ..lowrank import ALIVE, BLOCK, DEPENDENT, PANEL, SPOILED, ZERO, Factors
from ..philox import Noise
from ._feedback import effective, remainder
from ._tree import LANES, tree_sum
from .philox import random_words


def _products(p: F32) -> F64:
    """<p[j], p[k]> for every k up to j."""
    approx_rank, n = p.shape
    wide, found = p.astype(np.float64), np.zeros((approx_rank, approx_rank))
    for low in range(0, n, BLOCK):
        block = wide[:, low : low + BLOCK]
        for j in range(approx_rank):
            for k in range(j + 1):
                found[j, k] += tree_sum(block[j] * block[k])
    return found


def _combinations(products: F64, again: bool) -> F64:
    """Of which rows each row is made."""
    approx_rank = products.shape[0]
    of = np.zeros((approx_rank, approx_rank))
    for j in range(approx_rank):
        shares = np.zeros(j)
        for k in range(j):
            for i in range(k + 1):
                shares[k] += of[k, i] * products[j, i]
        left = products[j, j]
        for k in range(j):
            left -= shares[k] * shares[k]
        if not np.isfinite(left):
            of[j, : j + 1] = np.nan
        elif left > (0.25 if again else DEPENDENT * DEPENDENT * products[j, j]):
            for i in range(j):
                taken = 0.0
                for k in range(i, j):
                    taken += shares[k] * of[k, i]
                of[j, i] = -taken / np.sqrt(left)
            of[j, j] = 1.0 / np.sqrt(left)
    return of


def _combine(p: F32, of: F64) -> None:
    wide = p.astype(np.float64)
    for j in range(p.shape[0]):
        total = np.zeros(p.shape[1])
        for k in range(j + 1):
            total += of[j, k] * wide[k]
        p[j] = np.nan if np.isnan(of[j, j]) else total


def orthonormalize(p: F32) -> None:
    """See :func:`compressa.kernels.lowrank.orthonormalize`."""
    for again in (False, True):
        _combine(p, _combinations(_products(p), again))


def judge_rows(factor: F32, verdicts: U32) -> None:
    """See :func:`compressa.kernels.lowrank.judge_rows`."""
    verdicts[:] = np.where(factor.any(axis=1), ALIVE, ZERO)
    verdicts[~np.isfinite(factor).all(axis=1)] = SPOILED


def low_rank_product(p: F32, q: F32, out: F32, verdicts: U32 | None = None) -> None:
    """See :func:`compressa.kernels.lowrank.low_rank_product`."""
    if _is_spoiled(verdicts):
        out[:] = np.nan
        return
    out[:] = np.outer(p[0], q[0])
    for k in range(1, p.shape[0]):
        out += np.outer(p[k], q[k])


def _is_spoiled(verdicts: U32 | None) -> bool:
    return verdicts is not None and SPOILED in verdicts


def left_factor(x: F32, q: F32, p: F32, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.left_factor`."""
    x[:] = effective(x, residual, scale)
    p[:] = 0
    for low in range(0, x.shape[1], BLOCK):
        block = slice(low, low + BLOCK)
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
    m: F32,
    p: F32,
    q: F32,
    residual: F32,
    scale: float = 1.0,
    *,
    held: bool = False,
    verdicts: U32 | None = None,
    out: Factors | None = None,
) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    product = np.empty_like(m)
    low_rank_product(p, q, product, verdicts)
    rest = remainder(m, product, scale)
    if not _is_spoiled(verdicts):
        residual[:] = residual + rest if held else rest
    low_rank_product(*(out or (p, q)), m, verdicts)


def keep_directions(factor: F32, kept: F32, verdicts: U32, noise: Noise) -> None:
    """See :func:`compressa.kernels.lowrank.keep_directions`."""
    if _is_spoiled(verdicts):
        return
    words = np.empty(factor.size, np.uint32)
    random_words(words, **noise._asdict())
    drawn = (words.astype(np.int64) - 2**31).astype(np.float32) * np.float32(2.0**-31)
    alive = verdicts == ALIVE
    kept[alive] = factor[alive]
    kept[~alive] = drawn.reshape(factor.shape)[~alive]
