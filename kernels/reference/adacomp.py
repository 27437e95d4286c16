"""AdaComp's selection in NumPy; see :mod:`compressa.kernels.adacomp`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ._selection import mark, send, take_largest, unscaled


def select_adacomp(
    x: Gradient,
    bin_elems: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> int:
    """See :func:`compressa.kernels.adacomp.select_adacomp`."""
    q = unscaled(x, residual, scale)
    if not np.isfinite(q).all():
        take_largest(q, 0, 0.0, indices, values, residual, scale)
        return mark(indices, values)
    repeated = np.abs(q + unscaled(x, None, scale))
    matters = np.zeros(q.size, bool)
    for low in range(0, q.size, bin_elems):
        here = slice(low, low + bin_elems)
        matters[here] = repeated[here] >= np.abs(q[here]).max()
    some = np.where(matters, q, np.float32(0))
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    count = take_largest(some, indices.size, smallest, indices, values, None, scale)
    send(q, indices[:count], values[:count], residual, scale)
    return count
