"""Low-rank arithmetic for NumPy arrays; see :mod:`compressa.kernels.lowrank`.

The factors come a vector a row, contiguous; the wide matrices are passed over once, row by row.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, F64
from ..lowrank import DEPENDENT
from ._feedback import inverse
from ._jit import jit
from ._tree import LANES, add_terms, halve

_TERMS = 16 * LANES  # one piece of a sum: small enough for the first-level cache


@jit
def _products(a: F32, b: F32, terms: F64) -> None:
    for i in range(a.size):
        terms[i] = np.float64(a[i]) * np.float64(b[i])


@jit
def _dot(a: F32, b: F32, terms: F64, lanes: F64) -> float:
    lanes[:] = 0.0
    for low in range(0, a.size, _TERMS):
        high = min(low + _TERMS, a.size)
        _products(a[low:high], b[low:high], terms)
        add_terms(terms[: high - low], lanes)
    return halve(lanes)


@jit
def _subtract(row: F32, factor: float, direction: F32) -> None:
    for i in range(row.size):
        row[i] = np.float32(np.float64(row[i]) - factor * np.float64(direction[i]))


@jit
def _normalize(row: F32, before: float, after: float) -> None:
    if not np.isfinite(after):
        row[:] = np.float32(np.nan)
    elif after > DEPENDENT * before:
        for i in range(row.size):
            row[i] = np.float32(np.float64(row[i]) / after)
    else:
        row[:] = np.float32(0)


@jit
def _orthonormalize(p: F32) -> None:
    terms, lanes = np.empty(_TERMS, np.float64), np.empty(LANES, np.float64)
    for j in range(p.shape[0]):
        row = p[j]
        before = np.sqrt(_dot(row, row, terms, lanes))
        for _ in range(2):
            for i in range(j):
                _subtract(row, _dot(p[i], row, terms, lanes), p[i])
        _normalize(row, before, np.sqrt(_dot(row, row, terms, lanes)))


@jit
def _scaled(factor: np.float32, row: F32, out: F32) -> None:
    for j in range(out.size):
        out[j] = factor * row[j]


@jit
def _add_scaled(factor: np.float32, row: F32, out: F32) -> None:
    for j in range(out.size):
        out[j] += factor * row[j]


@jit
def _row_of_product(factors: F32, q: F32, out: F32) -> None:
    _scaled(factors[0], q[0], out)
    for k in range(1, factors.size):
        _add_scaled(factors[k], q[k], out)


@jit
def _product(p: F32, q: F32, out: F32) -> None:
    for i in range(out.shape[0]):
        _row_of_product(p[:, i], q, out[i])


@jit
def _replace(m: F32, product: F32, residual: F32, back: np.float32) -> None:
    for j in range(m.size):
        residual[j] = (m[j] - product[j]) * back
        m[j] = product[j]


@jit
def _split(m: F32, p: F32, q: F32, residual: F32, back: np.float32) -> None:
    product = np.empty(m.shape[1], np.float32)
    for i in range(m.shape[0]):
        _row_of_product(p[:, i], q, product)
        _replace(m[i], product, residual[i], back)


def orthonormalize(p: F32) -> None:
    """See :func:`compressa.kernels.lowrank.orthonormalize`."""
    _orthonormalize(p)


def low_rank_product(p: F32, q: F32, out: F32) -> None:
    """See :func:`compressa.kernels.lowrank.low_rank_product`."""
    _product(p, q, out)


def split_low_rank(m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    _split(m, p, q, residual, inverse(scale))
