"""Low-rank arithmetic for NumPy arrays; see :mod:`compressa.kernels.lowrank`.

The factors come a vector a row, contiguous; the wide matrices are passed over once, row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._arrays import F32, F64, U32
from ..lowrank import ALIVE, BLOCK, DEPENDENT, PANEL, SPOILED, ZERO, Factors
from ..philox import Noise
from ..scratch import scratch
from ..threads import over_slices
from ._feedback import factors_of
from ._jit import jit, nested
from ._lanes import sum_products
from ._skinny import ROWS, add_products, multiply_rows, split_rows
from .philox import random_words

_PIECE = 512  # elements of a sum of rows: small enough for the first-level cache


@nested
def _products(p: F32, found: F64) -> None:
    """<p[j], p[k]> for every k up to j."""
    found[:] = 0.0
    for low in range(0, p.shape[1], BLOCK):
        high = min(low + BLOCK, p.shape[1])
        for j in range(p.shape[0]):
            for k in range(j + 1):
                found[j, k] += sum_products(p[j, low:high], p[k, low:high])


@nested
def _share_out(products: F64, j: int, of: F64, shares: F64) -> float:
    """How much of row j lies along each row before it; returns the square of what is left."""
    left = products[j, j]
    for k in range(j):
        shares[k] = 0.0
        for i in range(k + 1):
            shares[k] += of[k, i] * products[j, i]
    for k in range(j):
        left -= shares[k] * shares[k]
    return float(left)


@nested
def _combinations(products: F64, again: bool, of: F64) -> None:
    """Of which rows each row is made."""
    of[:] = 0.0
    shares = np.empty(products.shape[0], np.float64)
    for j in range(products.shape[0]):
        left = _share_out(products, j, of, shares)
        if not np.isfinite(left):
            of[j, : j + 1] = np.nan
        elif left > (0.25 if again else DEPENDENT * DEPENDENT * products[j, j]):
            for i in range(j):
                taken = 0.0
                for k in range(i, j):
                    taken += shares[k] * of[k, i]
                of[j, i] = -taken / np.sqrt(left)
            of[j, j] = 1.0 / np.sqrt(left)


@nested
def _add_share(share: float, row: F32, total: F64) -> None:
    for i in range(row.size):
        total[i] += share * np.float64(row[i])


@nested
def _narrow(total: F64, row: F32) -> None:
    for i in range(row.size):
        row[i] = np.float32(total[i])


@nested
def _combine(p: F32, of: F64) -> None:
    room = np.empty(_PIECE, np.float64)
    for low in range(0, p.shape[1], _PIECE):
        high = min(low + _PIECE, p.shape[1])
        total = room[: high - low]
        for j in range(p.shape[0] - 1, -1, -1):  # the rows before it are still what they were
            total[:] = 0.0
            for k in range(j + 1):
                _add_share(of[j, k], p[k, low:high], total)
            if np.isnan(of[j, j]):
                p[j, low:high] = np.float32(np.nan)
            else:
                _narrow(total, p[j, low:high])


@jit
def _orthonormalize(p: F32) -> None:
    products = np.empty((p.shape[0], p.shape[0]), np.float64)
    of = np.empty_like(products)
    for again in (False, True):
        _products(p, products)
        _combinations(products, again, of)
        _combine(p, of)


@nested
def _scaled(factor: np.float32, row: F32, out: F32) -> None:
    for j in range(out.size):
        out[j] = factor * row[j]


@nested
def _add_scaled(factor: np.float32, row: F32, out: F32) -> None:
    for j in range(out.size):
        out[j] += factor * row[j]


@nested
def _row_of_product(factors: F32, q: F32, out: F32) -> None:
    _scaled(factors[0], q[0], out)
    for k in range(1, factors.size):
        _add_scaled(factors[k], q[k], out)


@jit
def _product(p: F32, q: F32, out: F32, bounds: tuple[int, int]) -> None:
    for i in range(bounds[0], bounds[1]):
        _row_of_product(p[:, i], q, out[i])


@nested
def _keep_missed(m: F32, product: F32, residual: F32, back: np.float32, held: bool) -> None:
    for j in range(m.size):
        missed = (m[j] - product[j]) * back
        residual[j] = residual[j] + missed if held else missed


@jit
def _split_any(
    m: F32,
    factors: Factors,
    residual: F32,
    back: np.float32,
    held: bool,
    out: Factors,
    bounds: tuple[int, int],
) -> None:
    """Split rows with any number of vectors."""
    product = np.empty(m.shape[1], np.float32)
    for i in range(bounds[0], bounds[1]):
        _row_of_product(factors[0][:, i], factors[1], product)
        _keep_missed(m[i], product, residual[i], back, held)
        _row_of_product(out[0][:, i], out[1], m[i])


@jit
def _split(
    m: F32,
    factors: Factors,
    residual: F32,
    back: np.float32,
    out: Factors,
    bounds: tuple[int, int],
) -> None:
    p, q = factors
    out_p, out_q = out
    approx_rank, rest = q.shape[0], bounds[0]
    if approx_rank == 4:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 4, m, residual, back, p, q, out_p, out_q, i)
            rest = i + ROWS
    elif approx_rank == 2:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 2, m, residual, back, p, q, out_p, out_q, i)
            rest = i + ROWS
    elif approx_rank == 1:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 1, m, residual, back, p, q, out_p, out_q, i)
            rest = i + ROWS
    elif approx_rank == 8:
        for i in range(bounds[0], bounds[1] - ROWS + 1, ROWS):
            split_rows(4, 8, m, residual, back, p, q, out_p, out_q, i)
            rest = i + ROWS
    _split_any(m, factors, residual, back, False, out, (rest, bounds[1]))


@jit
def _left(
    x: F32, q: F32, p: F32, residual: F32 | None, loss_scale: np.float32, bounds: tuple[int, int]
) -> None:
    """Fill columns of p, four rows of M at a time; the last ones one at a time."""
    vectors, rest = q.shape[0], bounds[1] - (bounds[1] - bounds[0]) % ROWS
    few = vectors & 3
    for i in range(bounds[0], rest, ROWS):
        # The first group of vectors adds the residual; the others find it added.
        if few == 0:
            multiply_rows(4, 4, x, residual, loss_scale, q, p, i, 0)
        elif few == 1:
            multiply_rows(4, 1, x, residual, loss_scale, q, p, i, 0)
        elif few == 2:
            multiply_rows(4, 2, x, residual, loss_scale, q, p, i, 0)
        else:
            multiply_rows(4, 3, x, residual, loss_scale, q, p, i, 0)
        for k in range(few if few else 4, vectors, 4):
            multiply_rows(4, 4, x, None, loss_scale, q, p, i, k)
    for i in range(rest, bounds[1]):
        multiply_rows(1, 1, x, residual, loss_scale, q, p, i, 0)
        for k in range(1, vectors):
            multiply_rows(1, 1, x, None, loss_scale, q, p, i, k)


@jit
def _right(
    x: F32, p: F32, sums: F32, residual: F32 | None, loss_scale: np.float32, bounds: tuple[int, int]
) -> None:
    """Add rows of M, times columns of p, to sums."""
    vectors, rest = p.shape[0], bounds[1] - (bounds[1] - bounds[0]) % ROWS
    few = vectors & 3
    sums[:] = np.float32(0)
    for i in range(bounds[0], rest, ROWS):
        if few == 0:
            add_products(4, 4, x, residual, loss_scale, p, sums, i, 0)
        elif few == 1:
            add_products(4, 1, x, residual, loss_scale, p, sums, i, 0)
        elif few == 2:
            add_products(4, 2, x, residual, loss_scale, p, sums, i, 0)
        else:
            add_products(4, 3, x, residual, loss_scale, p, sums, i, 0)
        for k in range(few if few else 4, vectors, 4):
            add_products(4, 4, x, None, loss_scale, p, sums, i, k)
    for i in range(rest, bounds[1]):
        add_products(1, 1, x, residual, loss_scale, p, sums, i, 0)
        for k in range(1, vectors):
            add_products(1, 1, x, None, loss_scale, p, sums, i, k)


@jit
def _add_up(panels: npt.NDArray[np.float32], q: F32) -> None:
    """Sum the panels in order."""
    q[:] = np.float32(0)
    for panel in range(panels.shape[0]):
        for k in range(q.shape[0]):
            for j in range(q.shape[1]):
                q[k, j] += panels[panel, k, j]


@nested
def _judge_row(words: U32) -> int:
    found, spoiled = np.uint32(0), False
    for i in range(words.size):
        size = words[i] & np.uint32(0x7FFFFFFF)
        found |= size
        spoiled |= size >= np.uint32(0x7F800000)
    return SPOILED if spoiled else ALIVE if found else ZERO


@jit
def _judge_rows(words: U32, verdicts: U32) -> None:
    for k in range(words.shape[0]):
        verdicts[k] = _judge_row(words[k])


def orthonormalize(p: F32) -> None:
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


def left_factor(
    x: F32, q: F32, p: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    factor = np.float32(loss_scale)
    _over_rows(x.shape, ROWS, lambda *bounds: _left(x, q, p, residual, factor, bounds))


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    factor, count = np.float32(loss_scale), -(-x.shape[0] // PANEL)
    panels = scratch("lowrank.panels", count * q.size, np.float32).reshape(count, *q.shape)

    def work(low: int, high: int) -> None:
        for first in range(low, high, PANEL):
            bounds = first, min(first + PANEL, high)
            _right(x, p, panels[first // PANEL], residual, factor, bounds)

    _over_rows(x.shape, PANEL, work)
    _add_up(panels, q)


def judge_rows(factor: F32, verdicts: U32) -> None:
    _judge_rows(factor.view(np.uint32), verdicts)


def low_rank_product(p: F32, q: F32, out: F32, verdicts: U32 | None = None) -> None:
    if _is_spoiled(verdicts):
        out.fill(np.nan)
    else:
        _over_rows(out.shape, 1, lambda *bounds: _product(p, q, out, bounds))


def _is_spoiled(verdicts: U32 | None) -> bool:
    return verdicts is not None and SPOILED in verdicts.tolist()


def split_low_rank(
    m: F32,
    p: F32,
    q: F32,
    residual: F32,
    loss_scale: float = 1.0,
    *,
    held: bool = False,
    verdicts: U32 | None = None,
    out: Factors | None = None,
) -> None:
    if _is_spoiled(verdicts):
        m.fill(np.nan)
        return
    back, factors = factors_of(loss_scale)[1], (p, q)
    becomes = out or factors

    def work(low: int, high: int) -> None:
        bounds = low, high
        if held:
            _split_any(m, factors, residual, back, True, becomes, bounds)
        else:
            _split(m, factors, residual, back, becomes, bounds)

    _over_rows(m.shape, ROWS, work)


def keep_directions(factor: F32, kept: F32, verdicts: U32, noise: Noise) -> None:
    known = verdicts.tolist()
    if SPOILED in known:
        return
    if ZERO not in known:
        np.copyto(kept, factor)
        return
    for k, row in enumerate(kept):
        if known[k] == ALIVE:
            row[:] = factor[k]
        else:
            _draw(row, noise._replace(start=noise.start + k * row.size))


def _draw(row: F32, noise: Noise) -> None:
    """Fill with uniform numbers in [-1, 1)."""
    words = row.view(np.uint32)
    random_words(words, **noise._asdict())
    words ^= np.uint32(1 << 31)
    row[:] = words.view(np.int32)
    row *= np.float32(2.0**-31)
