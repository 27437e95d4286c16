"""What PowerSGD needs of linear algebra, in one written order, so that replicas agree in every bit.

PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019) approximates M by P Q^T, with the columns of
P orthonormal and Q = M^T P. Both factors are stored transposed, a vector a row: the products with
M run along memory then, and so does everything here. Every rank computes P Q^T itself, so the
arithmetic here uses IEEE additions, multiplications, divisions and square roots only, each
rounded on its own: any machine gets the same result, on any number of threads.

M = x + scale * residual in float32, product rounded first, is made in the pass that multiplies it
first. So a step passes over the matrix three times, as often as there are averages to wait for.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, check_array, check_scale
from ._backends import backend

DEPENDENT = 2.0**-18
PANEL = 256  # rows that are summed up together


def _shape(name: str, matrix: F32) -> tuple[int, int]:
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {matrix.shape}")
    return matrix.shape[0], matrix.shape[1]


def _vectors(name: str, factor: F32) -> int:
    approx_rank = _shape(name, factor)[0]
    if approx_rank < 1:
        raise ValueError(f"{name} must have at least one row")
    return approx_rank


def _check_sum(x: F32, residual: F32 | None, scale: float) -> tuple[int, int]:
    shape = _shape("x", x)
    check_array("x", x, np.float32, shape, writable=residual is not None)
    if residual is not None:
        check_array("residual", residual, np.float32, shape)
    check_scale(scale)
    return shape


def _check_product(p: F32, q: F32, out: F32, name: str) -> None:
    approx_rank, (_, rows), (_, columns) = _vectors("p", p), _shape("p", p), _shape("q", q)
    check_array("p", p, np.float32, (approx_rank, rows))
    check_array("q", q, np.float32, (approx_rank, columns))
    check_array(name, out, np.float32, (rows, columns), writable=True)


def orthonormalize(p: F32) -> None:
    """Make the rows of ``p`` orthonormal in place: modified Gram-Schmidt, each row twice.

    For each row in order: norm before = sqrt(<p, p>); then, two times over, for each earlier
    row q in order, p = float32(p - <q, p> * q) element by element in float64; then norm after.
    (Once is not enough for nearly dependent rows; twice is.) Dot products are in float64 by the
    written tree: lane l of 16 sums elements l, l+16, ... in order, then lane j takes in lane
    j + half.

    * norm after > 2**-18 * norm before: the row becomes float32(p / norm after).
    * otherwise it becomes zero. What is left of a dependent row is rounding noise; scaled up to
      unit norm it would be a direction that the gradient does not have. A caller that starts the
      next step from Q has to draw new values for rows of Q that became zero, or else that part
      of the rank is lost for good.
    * a row with NaN or Inf becomes NaN, and so does every later one.

    Args:
        p: float32[r, n], overwritten.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong.
    """
    check_array("p", p, np.float32, _shape("p", p), writable=True)
    backend("lowrank", p).orthonormalize(p)


def low_rank_product(p: F32, q: F32, out: F32) -> None:
    """Write p^T q to ``out``: ((p[0,i] q[0,j]) + p[1,i] q[1,j]) + ..., each step rounded.

    Args:
        p: float32[r, n], r at least 1.
        q: float32[r, c].
        out: float32[n, c], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    _check_product(p, q, out, "out")
    backend("lowrank", p, q, out).low_rank_product(p, q, out)


def left_factor(x: F32, q: F32, p: F32, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """X = M, and p[k, i] = <q[k], M[i]>: the product M Q, with its columns as rows.

    Float32. In blocks of 2048 columns, lane l of 16 sums the products of columns l, l+16, ... in
    order, then lane j takes in lane j + half; blocks in order. Products are rounded before sums.

    Args:
        x: float32[n, c]; M afterwards.
        q: float32[r, c], r at least 1.
        p: float32[r, n], overwritten.
        residual: float32[n, c], only read; None for M = x, which is only read then.
        scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``scale`` is wrong.
    """
    rows, columns = _check_sum(x, residual, scale)
    approx_rank = _vectors("q", q)
    check_array("q", q, np.float32, (approx_rank, columns))
    check_array("p", p, np.float32, (approx_rank, rows), writable=True)
    backend("lowrank", x, q, p, residual).left_factor(x, q, p, residual=residual, scale=scale)


def right_factor(
    x: F32, p: F32, q: F32, *, residual: F32 | None = None, scale: float = 1.0
) -> None:
    """X = M, and q[k] = sum over i of p[k, i] M[i]: the product M^T P, with its columns as rows.

    Float32, element by element: the rows of a panel of 256 in order, from 0 on, and the panels in
    order, from 0 on. Products are rounded before sums.

    Args:
        x: float32[n, c]; M afterwards.
        p: float32[r, n], r at least 1.
        q: float32[r, c], overwritten.
        residual: float32[n, c], only read; None for M = x, which is only read then.
        scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``scale`` is wrong.
    """
    rows, columns = _check_sum(x, residual, scale)
    approx_rank = _vectors("p", p)
    check_array("p", p, np.float32, (approx_rank, rows))
    check_array("q", q, np.float32, (approx_rank, columns), writable=True)
    backend("lowrank", x, p, q, residual).right_factor(x, p, q, residual=residual, scale=scale)


def split_low_rank(
    m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0, *, held: bool = False
) -> None:
    """Split ``m`` into its approximation and the rest, in one pass over memory.

    residual = (m - product) * (1 / scale), then m = product, with the product of
    :func:`low_rank_product`; float32, 1 / scale rounded first. With ``held`` the residual has no
    part in ``m``, and stays: residual += (m - product) * (1 / scale).

    Args:
        m: float32[n, c]; afterwards the product.
        p: float32[r, n], r at least 1.
        q: float32[r, c].
        residual: float32[n, c], overwritten; updated in place with ``held``.
        scale: Loss scale that ``m`` carries and the residual does not.
        held: Whether the residual is kept.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``scale`` is wrong.
    """
    _check_product(p, q, m, "m")
    check_array("residual", residual, np.float32, m.shape, writable=True)
    check_scale(scale)
    backend("lowrank", m, p, q, residual).split_low_rank(m, p, q, residual, scale, held=held)


def keep_directions(q: F32, kept: F32) -> bool:
    """Copy the rows of ``q`` that are not all zero to ``kept``.

    Args:
        q: float32[r, c].
        kept: float32[r, c]; a row whose counterpart is zero is left as it is.

    Returns:
        Whether every row was copied.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong.
    """
    check_array("q", q, np.float32, _shape("q", q))
    check_array("kept", kept, np.float32, q.shape, writable=True)
    return bool(backend("lowrank", q, kept).keep_directions(q, kept))
