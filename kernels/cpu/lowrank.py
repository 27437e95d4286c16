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
def _split_long(m: F32, p: F32, q: F32, residual: F32, back: np.float32) -> None:
    product = np.empty(m.shape[1], np.float32)
    for i in range(m.shape[0]):
        _row_of_product(p[:, i], q, product)
        _replace(m[i], product, residual[i], back)


# The usual ranks keep a product in a register: short rows would cost more to begin than to do.


@jit
def _split_row_1(m: F32, residual: F32, back: np.float32, a: np.float32, q: F32) -> None:
    for j in range(m.size):
        product = a * q[j]
        residual[j] = (m[j] - product) * back
        m[j] = product


@jit
def _split_row_2(
    m: F32, residual: F32, back: np.float32, a: np.float32, q: F32, b: np.float32, r: F32
) -> None:
    for j in range(m.size):
        product = a * q[j] + b * r[j]
        residual[j] = (m[j] - product) * back
        m[j] = product


@jit
def _split_row_4(
    m: F32, residual: F32, back: np.float32, factors: F32, q: F32, r: F32, s: F32, t: F32
) -> None:
    a, b, c, d = factors[0], factors[1], factors[2], factors[3]
    for j in range(m.size):
        product = a * q[j] + b * r[j]
        product += c * s[j]
        product += d * t[j]
        residual[j] = (m[j] - product) * back
        m[j] = product


@jit
def _split(m: F32, p: F32, q: F32, residual: F32, back: np.float32) -> None:
    approx_rank = q.shape[0]
    if approx_rank == 1:
        for i in range(m.shape[0]):
            _split_row_1(m[i], residual[i], back, p[0, i], q[0])
    elif approx_rank == 2:
        for i in range(m.shape[0]):
            _split_row_2(m[i], residual[i], back, p[0, i], q[0], p[1, i], q[1])
    elif approx_rank == 4:
        for i in range(m.shape[0]):
            _split_row_4(m[i], residual[i], back, p[:, i], q[0], q[1], q[2], q[3])
    else:
        _split_long(m, p, q, residual, back)


@jit
def _is_zero(row: F32) -> bool:
    i = 0
    while i < row.size and row[i] == np.float32(0):
        i += 1
    return i == row.size


@jit
def _keep_directions(q: F32, kept: F32) -> bool:
    complete = True
    for k in range(q.shape[0]):
        if _is_zero(q[k]):
            complete = False
        else:
            kept[k] = q[k]
    return complete


def orthonormalize(p: F32) -> None:
    """See :func:`compressa.kernels.lowrank.orthonormalize`."""
    _orthonormalize(p)


def low_rank_product(p: F32, q: F32, out: F32) -> None:
    """See :func:`compressa.kernels.lowrank.low_rank_product`."""
    _product(p, q, out)


def split_low_rank(m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    _split(m, p, q, residual, inverse(scale))


def keep_directions(q: F32, kept: F32) -> bool:
    """See :func:`compressa.kernels.lowrank.keep_directions`."""
    return bool(_keep_directions(q, kept))
