"""The k largest elements by magnitude, exactly, and what a sparse payload needs besides.

Top-k keeps the best k-term approximation: ||p - C(p)||^2 <= (1 - k/n) ||p||^2 (Stich, Cordonnier
and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018). It is biased, so it needs error feedback.

Exact arithmetic:

* p = x + loss_scale * residual in float32, product rounded first; p = x without a residual.
* q = p * (1 / loss_scale), with 1 / loss_scale rounded first: what is compared, and what is kept.
  It is p itself without a loss scale, and but for denormal numbers p in other units with a power of
  two.
* Order: larger |q| first, then the lower index; so ties are settled the same way everywhere.
* Selected: the value is q * loss_scale; new residual = 0, because float32 values are sent whole, or
  q where the value overflowed. Where the wire carries 16 bits, :func:`return_unsent` puts back what
  the cast lost. Not selected: new residual = q.
* If any q is infinite or NaN: indices are 0 to k-1, the first value is NaN and the others are 0, so
  that every rank sees a step that overflowed. The residual of element 0 and of what is not finite
  is left as it was, and nothing is poisoned; all other residuals are q.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend, device_of
from ._numpy import remainder
from ._selection import take_largest, unscaled
from .bitpack import check_indices


def select_top_k(
    x: Gradient,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    """Find the ``k`` largest elements of ``x`` plus residual, and keep the others for later.

    Example:
        >>> import numpy as np
        >>> indices, values = np.empty(2, np.uint32), np.empty(2, np.float32)
        >>> select_top_k(np.array([1, -5, 2, 5], np.float32), 2, indices, values)
        >>> indices.tolist(), values.tolist()
        ([1, 3], [-5.0, 5.0])

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        k: How many to select, 0 to n.
        indices: uint32[k], overwritten with increasing indices.
        values: float32[k], overwritten with q * loss_scale at those indices.
        residual: float32[n], updated in place; None for no feedback.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout, ``k`` or ``loss_scale`` is wrong.
    """
    check_gradient(x)
    if not 0 <= k <= x.size <= 2**32:
        raise ValueError(f"k must lie between 0 and n = {x.size} (at most 2**32), not {k}")
    check_array("indices", indices, np.uint32, (k,), writable=True)
    check_array("values", values, np.float32, (k,), writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("topk", x, indices, values, residual):
        kernel.select_top_k(x, k, indices, values, residual=residual, loss_scale=loss_scale)
        return
    q = unscaled(x, residual, loss_scale)
    if take_largest(q, k, 0.0, indices, values, residual, loss_scale) < 0 and k:
        indices[:] = np.arange(k)
        values[0], values[1:] = np.nan, 0


def scatter_add(
    indices: U32, values: F32, out: F32, *, weight: float = 1.0, check: bool = True
) -> None:
    """out[index] += weight * value for each pair in order, product rounded first.

    Args:
        indices: uint32[k], each below ``out.size``; one may occur more than once.
        values: float32[k].
        out: float32[n], added to.
        weight: Factor on every value.
        check: Whether to make sure of the indices, as `check_indices` does; a CPU always does.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or an index is too large; ``out`` is untouched,
            but where a GPU's answers come later: all other pairs are added then.
    """
    check_array("indices", indices, np.uint32)
    check_array("values", values, np.float32, (indices.size,))
    check_array("out", out, np.float32, writable=True)
    if check or device_of(indices) == "cpu":
        check_indices(indices, out.size)
    if kernel := backend("topk", indices, values, out):
        kernel.scatter_add(indices, values, out, weight=weight)
        return
    np.add.at(out, indices, np.float32(weight) * values)


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, loss_scale: float = 1.0
) -> None:
    """Give the residual what a narrower wire format lost of the selected values.

    residual[index] += (exact - sent) * (1 / loss_scale), product rounded first; exact *
    (1 / loss_scale) where the cast overflowed and ``sent`` is not finite; untouched where nothing
    was lost, and where ``exact`` itself is not finite.

    Args:
        residual: float32[n], updated in place, as :func:`select_top_k` left it.
        indices: uint32[k], distinct, each below n.
        exact: float32[k], the values as they were selected.
        sent: float32[k], the values as receivers decode them.
        loss_scale: Loss scale that the values carry and the residual does not.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``loss_scale`` is wrong, or an index is too large.
    """
    check_array("indices", indices, np.uint32)
    check_array("exact", exact, np.float32, (indices.size,))
    check_array("sent", sent, np.float32, (indices.size,))
    check_array("residual", residual, np.float32, writable=True)
    check_feedback(residual, residual.size, loss_scale)
    check_indices(indices, residual.size)
    if kernel := backend("topk", residual, indices, exact, sent):
        kernel.return_unsent(residual, indices, exact, sent, loss_scale=loss_scale)
        return
    arrived = np.where(np.isfinite(sent), sent, np.float32(0))
    lost = remainder(exact, arrived, loss_scale)
    known = np.isfinite(exact) & (lost != 0)
    residual[indices[known]] += lost[known]
