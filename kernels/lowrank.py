"""What PowerSGD needs of linear algebra, in one written order, so that replicas agree in every bit.

PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019) approximates M by P Q^T, with the columns of
P orthonormal and Q = M^T P. Both factors are stored transposed, a vector a row: the products with
M run along memory then, and so does everything here. Every rank computes P Q^T itself, so the
arithmetic here uses IEEE additions, multiplications, divisions and square roots only, each
rounded on its own: any machine gets the same result. (The two large products with M are not here;
their results are averaged over the ranks, and what is averaged is the same everywhere.)
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, check_array, check_scale
from ._backends import backend

DEPENDENT = 2.0**-18


def _shape(name: str, matrix: F32) -> tuple[int, int]:
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {matrix.shape}")
    return matrix.shape[0], matrix.shape[1]


def _check_product(p: F32, q: F32, out: F32, name: str) -> None:
    (approx_rank, rows), (_, columns) = _shape("p", p), _shape("q", q)
    if approx_rank < 1:
        raise ValueError("p must have at least one row")
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


def split_low_rank(m: F32, p: F32, q: F32, residual: F32, scale: float = 1.0) -> None:
    """Split ``m`` into its approximation and the rest, in one pass over memory.

    residual = (m - product) * (1 / scale), then m = product, with the product of
    :func:`low_rank_product`; float32, 1 / scale rounded first.

    Args:
        m: float32[n, c]; afterwards the product.
        p: float32[r, n], r at least 1.
        q: float32[r, c].
        residual: float32[n, c], overwritten.
        scale: Loss scale that ``m`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``scale`` is wrong.
    """
    _check_product(p, q, m, "m")
    check_array("residual", residual, np.float32, m.shape, writable=True)
    check_scale(scale)
    backend("lowrank", m, p, q, residual).split_low_rank(m, p, q, residual, scale)


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
