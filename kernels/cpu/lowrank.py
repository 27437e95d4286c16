"""Low-rank arithmetic for NumPy arrays; see :mod:`compressa.kernels.lowrank`.

The factors come a vector a row, contiguous; the wide matrices are passed over once, row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._arrays import F32, F64
from ..lowrank import DEPENDENT, PANEL
from ..scratch import scratch
from ..threads import over_slices
from ._feedback import factors_of
from ._jit import jit
from ._skinny import ROWS, add_products, multiply_rows, split_rows
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
def _product(p: F32, q: F32, out: F32, bounds: tuple[int, int]) -> None:
    for i in range(bounds[0], bounds[1]):
        _row_of_product(p[:, i], q, out[i])


@jit
def _replace(m: F32, product: F32, residual: F32, back: np.float32, held: bool) -> None:
    for j in range(m.size):
        missed = (m[j] - product[j]) * back
        residual[j] = residual[j] + missed if held else missed
        m[j] = product[j]


@jit
def _split_any(
    m: F32, p: F32, q: F32, residual: F32, back: np.float32, held: bool, bounds: tuple[int, int]
) -> None:
    """Split rows with any number of vectors."""
    product = np.empty(m.shape[1], np.float32)
    for i in range(bounds[0], bounds[1]):
        _row_of_product(p[:, i], q, product)
        _replace(m[i], product, residual[i], back, held)


@jit
def _split(
    m: F32, p: F32, q: F32, residual: F32, back: np.float32, bounds: tuple[int, int]
) -> None:
    approx_rank, rest = q.shape[0], bounds[0]
    if approx_rank == 4:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 4, m, residual, back, p, q, i)
            rest = i + ROWS
    elif approx_rank == 2:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 2, m, residual, back, p, q, i)
            rest = i + ROWS
    elif approx_rank == 1:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 1, m, residual, back, p, q, i)
            rest = i + ROWS
    elif approx_rank == 8:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 8, m, residual, back, p, q, i)
            rest = i + ROWS
    _split_any(m, p, q, residual, back, False, (rest, bounds[1]))


@jit
def _left(
    x: F32, q: F32, p: F32, residual: F32 | None, scale: np.float32, bounds: tuple[int, int]
) -> None:
    """Fill columns of p, four rows of M at a time; the last ones one at a time."""
    vectors, rest = q.shape[0], bounds[1] - (bounds[1] - bounds[0]) % ROWS
    few = vectors & 3
    for i in range(bounds[0], rest, ROWS):
        # The first group of vectors adds the residual; the others find it added.
        if few == 0:
            multiply_rows(4, 4, x, residual, scale, q, p, i, 0)
        elif few == 1:
            multiply_rows(4, 1, x, residual, scale, q, p, i, 0)
        elif few == 2:
            multiply_rows(4, 2, x, residual, scale, q, p, i, 0)
        else:
            multiply_rows(4, 3, x, residual, scale, q, p, i, 0)
        for k in range(few if few else 4, vectors, 4):
            multiply_rows(4, 4, x, None, scale, q, p, i, k)
    for i in range(rest, bounds[1]):
        multiply_rows(1, 1, x, residual, scale, q, p, i, 0)
        for k in range(1, vectors):
            multiply_rows(1, 1, x, None, scale, q, p, i, k)


@jit
def _right(
    x: F32, p: F32, sums: F32, residual: F32 | None, scale: np.float32, bounds: tuple[int, int]
) -> None:
    """Add rows of M, times columns of p, to sums."""
    vectors, rest = p.shape[0], bounds[1] - (bounds[1] - bounds[0]) % ROWS
    few = vectors & 3
    sums[:] = np.float32(0)
    for i in range(bounds[0], rest, ROWS):
        if few == 0:
            add_products(4, 4, x, residual, scale, p, sums, i, 0)
        elif few == 1:
            add_products(4, 1, x, residual, scale, p, sums, i, 0)
        elif few == 2:
            add_products(4, 2, x, residual, scale, p, sums, i, 0)
        else:
            add_products(4, 3, x, residual, scale, p, sums, i, 0)
        for k in range(few if few else 4, vectors, 4):
            add_products(4, 4, x, None, scale, p, sums, i, k)
    for i in range(rest, bounds[1]):
        add_products(1, 1, x, residual, scale, p, sums, i, 0)
        for k in range(1, vectors):
            add_products(1, 1, x, None, scale, p, sums, i, k)


@jit
def _add_up(panels: npt.NDArray[np.float32], q: F32) -> None:
    """Sum the panels in order."""
    q[:] = np.float32(0)
    for panel in range(panels.shape[0]):
        for k in range(q.shape[0]):
            for j in range(q.shape[1]):
                q[k, j] += panels[panel, k, j]


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


def _over_rows(shape: tuple[int, ...], multiple: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(low, high)`` on rows that begin on multiples of so many."""
    rows, columns = shape
    if not columns:
        work(0, rows)
        return
    over_slices(
        rows * columns,
        multiple * columns,
        lambda low, high: work(low // columns, high // columns),
    )


def left_factor(x: F32, q: F32, p: F32, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.lowrank.left_factor`."""
    factor = np.float32(scale)
    _over_rows(x.shape, ROWS, lambda *bounds: _left(x, q, p, residual, factor, bounds))


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, scale: float = 1.0
) -> None:
    """See :func:`compressa.kernels.lowrank.right_factor`."""
    factor, count = np.float32(scale), -(-x.shape[0] // PANEL)
    panels = scratch("lowrank.panels", count * q.size, np.float32).reshape(count, *q.shape)

    def work(low: int, high: int) -> None:
        for first in range(low, high, PANEL):
            bounds = first, min(first + PANEL, high)
            _right(x, p, panels[first // PANEL], residual, factor, bounds)

    _over_rows(x.shape, PANEL, work)
    _add_up(panels, q)


def low_rank_product(p: F32, q: F32, out: F32) -> None:
    """See :func:`compressa.kernels.lowrank.low_rank_product`."""
    _over_rows(out.shape, 1, lambda *bounds: _product(p, q, out, bounds))


def split_low_rank(
    m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0, *, held: bool = False
) -> None:
    """See :func:`compressa.kernels.lowrank.split_low_rank`."""
    back = factors_of(scale)[1]

    def work(low: int, high: int) -> None:
        bounds = low, high
        if held:
            _split_any(m, p, q, residual, back, True, bounds)
        else:
            _split(m, p, q, residual, back, bounds)

    _over_rows(m.shape, ROWS, work)


def keep_directions(q: F32, kept: F32) -> bool:
    """See :func:`compressa.kernels.lowrank.keep_directions`."""
    return bool(_keep_directions(q, kept))
