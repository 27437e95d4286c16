"""What PowerSGD needs of linear algebra, in one written order, so that replicas agree in every bit.

PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019) approximates M by P Q^T, with the columns of
P orthonormal and Q = M^T P. Both factors are stored transposed, a vector a row: the products with
M run along memory then, and so does everything here. Every rank computes P Q^T itself, so the
arithmetic here uses IEEE additions, multiplications, divisions and square roots only, each
rounded on its own: any machine gets the same result, on any number of threads.

M = x + loss_scale * residual in float32, product rounded first, is made in the pass that multiplies
it first. So a step passes over the matrix three times, as often as there are averages to wait for.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, F64, U32, check_array, check_loss_scale
from ._backends import backend
from ._numpy import LANES, effective, remainder, tree_sum
from .philox import Noise, check_noise, random_words

DEPENDENT = 2.0**-18
BLOCK = 2048  # elements of a row that are summed up together
PANEL = 256  # rows that are
ZERO, ALIVE, SPOILED = 0, 1, 2  # verdicts on the rows of a factor

Factors = tuple[F32, F32]
"""p and q."""


def _shape(name: str, matrix: F32) -> tuple[int, int]:
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {matrix.shape}")
    return matrix.shape[0], matrix.shape[1]


def _vectors(name: str, factor: F32) -> int:
    approx_rank = _shape(name, factor)[0]
    if approx_rank < 1:
        raise ValueError(f"{name} must have at least one row")
    return approx_rank


def _check_sum(x: F32, residual: F32 | None, loss_scale: float) -> tuple[int, int]:
    shape = _shape("x", x)
    check_array("x", x, np.float32, shape, writable=residual is not None)
    if residual is not None:
        check_array("residual", residual, np.float32, shape)
    check_loss_scale(loss_scale)
    return shape


def _check_product(p: F32, q: F32, out: F32, name: str, verdicts: U32 | None) -> None:
    approx_rank, (_, rows), (_, columns) = _vectors("p", p), _shape("p", p), _shape("q", q)
    check_array("p", p, np.float32, (approx_rank, rows))
    check_array("q", q, np.float32, (approx_rank, columns))
    check_array(name, out, np.float32, (rows, columns), writable=True)
    if verdicts is not None:
        check_array("verdicts", verdicts, np.uint32, (approx_rank,))


def orthonormalize(p: F32) -> None:
    """Make the rows of ``p`` orthonormal in place: Gram-Schmidt on their products, twice.

    Two times over, in float64: G[j, k] = <p[j], p[k]> for k <= j, by blocks of 2048 elements: lane
    l of 16 sums the products of elements l, l+16, ... in order, then lane j takes in lane j + half;
    blocks in order. Then, row for row, C says of which rows a new row is made:

        share[k] = sum of C[k, i] G[j, i] over i <= k     for each earlier row: what j has of it
        left     = G[j, j] - share[0]**2 - share[1]**2 - ...
        C[j, i]  = -(sum of share[k] C[k, i] over i <= k < j) / sqrt(left)
        C[j, j]  = 1 / sqrt(left)

    and p[j] = float32(sum of C[j, k] p[k] over k <= j). Sums are in order, from 0 on, and every
    operation is rounded on its own. What float64 has left of nearly dependent rows is not quite
    orthogonal after the first time, and is after the second. Rows may depend on each other one
    after the other, as in modified Gram-Schmidt, but all products of a time are known at once.

    * sqrt(left) > 2**-18 * norm of the row; the second time sqrt(left) > 1/2: as above.
    * otherwise the row becomes zero. What is left of a dependent row is rounding noise; scaled up
      to unit norm it would be a direction that the gradient does not have. A caller that starts
      the next step from Q has to draw new values for rows of Q that became zero, or else that part
      of the rank is lost for good; see :func:`keep_directions`.
    * a row with NaN or Inf becomes NaN, and so does every later one.

    Args:
        p: float32[r, n], overwritten.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong.
    """
    check_array("p", p, np.float32, _shape("p", p), writable=True)
    if kernel := backend("lowrank", p):
        kernel.orthonormalize(p)
        return
    for again in (False, True):
        _combine(p, _combinations(_products(p), again))


def judge_rows(factor: F32, verdicts: U32) -> None:
    """Find out which rows of a factor have a direction, without waiting for a GPU.

    Args:
        factor: float32[r, n].
        verdicts: uint32[r], overwritten: `ZERO` for a row of zeros, `SPOILED` for one with NaN or
            Inf, else `ALIVE`. One spoiled row spoils the factor.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("factor", factor, np.float32, _shape("factor", factor))
    check_array("verdicts", verdicts, np.uint32, factor.shape[:1], writable=True)
    if kernel := backend("lowrank", factor, verdicts):
        kernel.judge_rows(factor, verdicts)
        return
    verdicts[:] = np.where(factor.any(axis=1), ALIVE, ZERO)
    verdicts[~np.isfinite(factor).all(axis=1)] = SPOILED


def low_rank_product(p: F32, q: F32, out: F32, verdicts: U32 | None = None) -> None:
    """Write p^T q to ``out``: ((p[0,i] q[0,j]) + p[1,i] q[1,j]) + ..., each step rounded.

    Args:
        p: float32[r, n], r at least 1.
        q: float32[r, c].
        out: float32[n, c], overwritten.
        verdicts: uint32[r] of :func:`judge_rows`; with a spoiled row, ``out`` becomes NaN.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    _check_product(p, q, out, "out", verdicts)
    if kernel := backend("lowrank", p, q, out, verdicts):
        kernel.low_rank_product(p, q, out, verdicts)
        return
    if _is_spoiled(verdicts):
        out[:] = np.nan
        return
    out[:] = np.outer(p[0], q[0])
    for k in range(1, p.shape[0]):
        out += np.outer(p[k], q[k])


def left_factor(
    x: F32, q: F32, p: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    """X = M, and p[k, i] = <q[k], M[i]>: the product M Q, with its columns as rows.

    Float32. In blocks of 2048 columns, lane l of 16 sums the products of columns l, l+16, ... in
    order, then lane j takes in lane j + half; blocks in order. Products are rounded before sums.

    Args:
        x: float32[n, c]; M afterwards.
        q: float32[r, c], r at least 1.
        p: float32[r, n], overwritten.
        residual: float32[n, c], only read; None for M = x, which is only read then.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    rows, columns = _check_sum(x, residual, loss_scale)
    approx_rank = _vectors("q", q)
    check_array("q", q, np.float32, (approx_rank, columns))
    check_array("p", p, np.float32, (approx_rank, rows), writable=True)
    if kernel := backend("lowrank", x, q, p, residual):
        kernel.left_factor(x, q, p, residual=residual, loss_scale=loss_scale)
        return
    x[:] = effective(x, residual, loss_scale)
    p[:] = 0
    for low in range(0, x.shape[1], BLOCK):
        block = slice(low, low + BLOCK)
        for k in range(q.shape[0]):
            p[k] += _sum_lanes(q[k, block] * x[:, block])


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, loss_scale: float = 1.0
) -> None:
    """X = M, and q[k] = sum over i of p[k, i] M[i]: the product M^T P, with its columns as rows.

    Float32, element by element: the rows of a panel of 256 in order, from 0 on, and the panels in
    order, from 0 on. Products are rounded before sums.

    Args:
        x: float32[n, c]; M afterwards.
        p: float32[r, n], r at least 1.
        q: float32[r, c], overwritten.
        residual: float32[n, c], only read; None for M = x, which is only read then.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    rows, columns = _check_sum(x, residual, loss_scale)
    approx_rank = _vectors("p", p)
    check_array("p", p, np.float32, (approx_rank, rows))
    check_array("q", q, np.float32, (approx_rank, columns), writable=True)
    if kernel := backend("lowrank", x, p, q, residual):
        kernel.right_factor(x, p, q, residual=residual, loss_scale=loss_scale)
        return
    x[:] = effective(x, residual, loss_scale)
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
    loss_scale: float = 1.0,
    *,
    held: bool = False,
    verdicts: U32 | None = None,
    out: Factors | None = None,
) -> None:
    """Split ``m`` into its approximation and the rest; on a CPU in one pass over memory.

    residual = (m - product) * (1 / loss_scale), then m = product, with the product of
    :func:`low_rank_product`; float32, 1 / loss_scale rounded first. With ``held`` the residual has
    no part in ``m``, and stays: residual += (m - product) * (1 / loss_scale).

    Args:
        m: float32[n, c]; afterwards the product.
        p: float32[r, n], r at least 1.
        q: float32[r, c].
        residual: float32[n, c], overwritten; updated in place with ``held``.
        loss_scale: Loss scale that ``m`` carries and the residual does not.
        held: Whether the residual is kept.
        verdicts: uint32[r] of :func:`judge_rows`; with a spoiled row, ``m`` becomes NaN and the
            residual stays as it is.
        out: Factors of the shapes of p and q whose product ``m`` becomes in place of theirs, such
            as those that are the means of many.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong.
    """
    _check_product(p, q, m, "m", verdicts)
    out = out or (p, q)
    check_array("out[0]", out[0], np.float32, p.shape)
    check_array("out[1]", out[1], np.float32, q.shape)
    check_array("residual", residual, np.float32, m.shape, writable=True)
    check_loss_scale(loss_scale)
    if kernel := backend("lowrank", m, p, q, residual, verdicts, *out):
        kernel.split_low_rank(m, p, q, residual, loss_scale, held=held, verdicts=verdicts, out=out)
        return
    product = np.empty_like(m)
    low_rank_product(p, q, product, verdicts)
    rest = remainder(m, product, loss_scale)
    if not _is_spoiled(verdicts):
        residual[:] = residual + rest if held else rest
    low_rank_product(*(out or (p, q)), m, verdicts)


def keep_directions(factor: F32, kept: F32, verdicts: U32, noise: Noise) -> None:
    """Copy a factor's rows to ``kept``, with random ones in the place of zeros.

    A row that came out zero would stay zero for ever. Element e of the factor, counted from
    ``noise.start`` on, becomes float32(word - 2**31) * 2**-31 there, with its word of
    :func:`~compressa.kernels.philox.random_words`: a number in [-1, 1].

    Args:
        factor: float32[r, c].
        kept: float32[r, c], overwritten; it may be the factor itself. With a spoiled row, all of
            it stays as it is.
        verdicts: uint32[r] of :func:`judge_rows`, on the factor.
        noise: Where the random numbers begin.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``noise`` is wrong.
    """
    check_array("factor", factor, np.float32, _shape("factor", factor))
    check_array("kept", kept, np.float32, factor.shape, writable=True)
    check_array("verdicts", verdicts, np.uint32, factor.shape[:1])
    check_noise(noise, factor.size)
    if kernel := backend("lowrank", factor, kept, verdicts):
        kernel.keep_directions(factor, kept, verdicts, noise)
        return
    if _is_spoiled(verdicts):
        return
    words = np.empty(factor.size, np.uint32)
    random_words(words, **noise._asdict())
    drawn = (words.astype(np.int64) - 2**31).astype(np.float32) * np.float32(2.0**-31)
    alive = verdicts == ALIVE
    kept[alive] = factor[alive]
    kept[~alive] = drawn.reshape(factor.shape)[~alive]


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


def _is_spoiled(verdicts: U32 | None) -> bool:
    return verdicts is not None and SPOILED in verdicts


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
