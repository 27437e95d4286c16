"""What matters in each bin: AdaComp's selection.

Chen, Choi, Brand, Agrawal, Zhang and Gopalakrishnan, "AdaComp: Adaptive Residual Gradient
Compression for Data-Parallel Distributed Training", AAAI 2018. With the residual e and the gradient
g, an element of a bin is sent if

    |e + 2 g| >= largest |e + g| of the bin,

so if it would be as large as the largest one, should its gradient repeat once more. How many that
are adapts to the data: the bins of a layer that changes little send one element or none.
"""

from __future__ import annotations

import numpy as np

from ._arrays import F32, U32, Gradient, check_array, check_feedback, check_gradient
from ._backends import backend
from ._selection import mark, send, take_largest, unscaled


def select_adacomp(
    x: Gradient,
    bin_elems: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    """Send what matters in each bin of elements; where there is no room for all, the largest.

    q = e + g, and what is sent and kept of it, are as in :mod:`compressa.kernels.select`; g is
    x * (1 / loss_scale), and e + 2 g is q + g. Elements that are 0 are not sent.

    Example:
        >>> import numpy as np
        >>> x = np.array([1, -5, 2, 5, 9, 1, 1, 1], np.float32)
        >>> indices, values = np.empty(8, np.uint32), np.empty(8, np.float32)
        >>> count = select_adacomp(x, 4, indices, values)
        >>> indices[:count].tolist(), values[:count].tolist()
        ([1, 3, 4], [-5.0, 5.0, 9.0])

    Args:
        x: float32[n], n at most 2**32; or float16, or bfloat16 as uint16.
        bin_elems: Elements of a bin, at least one; the last bin may be shorter.
        indices: uint32[room], room at most n; the first ``count`` are overwritten.
        values: float32[room]; the first ``count`` are overwritten.
        residual: float32[n], updated in place; None for no feedback, e = 0.
        loss_scale: Loss scale that ``x`` carries and the residual does not.

    Returns:
        count: How many are sent.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or a number is wrong.
    """
    check_gradient(x)
    if bin_elems < 1:
        raise ValueError(f"bin_elems must be at least 1, not {bin_elems}")
    check_array("indices", indices, np.uint32, writable=True)
    if not indices.size <= x.size <= 2**32:
        raise ValueError(f"indices must have no more room than n = {x.size} (at most 2**32)")
    check_array("values", values, np.float32, indices.shape, writable=True)
    check_feedback(residual, x.size, loss_scale)
    if kernel := backend("adacomp", x, indices, values, residual):
        options = {"residual": residual, "loss_scale": loss_scale}
        return int(kernel.select_adacomp(x, bin_elems, indices, values, **options))
    q = unscaled(x, residual, loss_scale)
    if not np.isfinite(q).all():
        take_largest(q, 0, 0.0, indices, values, residual, loss_scale)
        return mark(indices, values)
    repeated = np.abs(q + unscaled(x, None, loss_scale))
    matters = np.zeros(q.size, bool)
    for low in range(0, q.size, bin_elems):
        here = slice(low, low + bin_elems)
        matters[here] = repeated[here] >= np.abs(q[here]).max()
    some = np.where(matters, q, np.float32(0))
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    count = take_largest(some, indices.size, smallest, indices, values, None, loss_scale)
    send(q, indices[:count], values[:count], residual, loss_scale)
    return count
