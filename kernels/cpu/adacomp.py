"""AdaComp's selection for NumPy arrays; see :mod:`compressa.kernels.adacomp`.

What matters is written to a vector of its own, with zeros elsewhere, and chosen from there.
"""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..scratch import scratch
from ..threads import over_slices
from ._candidates import send
from ._feedback import Factors, Values, magnitude_bits
from ._jit import jit
from ._listing import mark, source_of
from ._selection import select_largest
from ._unscaled import INFINITY, look
from ._values import load
from ._view import first_of, view

_SMALLEST = 1  # in magnitude bits


@jit
def _keep_what_matters(
    x: Values, residual: F32 | None, factors: Factors, bin_elems: int, some: F32
) -> bool:
    """Leave q in the residual, and what matters of it in ``some``; return whether it is finite."""
    largest = np.uint32(0)
    for low in range(0, x.size, bin_elems):
        high = min(low + bin_elems, x.size)
        here, mine = view(x, low, high), view(some, low, high)
        top = look(x, residual, factors, low, high, mine, None, None, np.uint32(0))
        q, largest = first_of(view(residual, low, high), mine), max(largest, top)
        for i in range(q.size):
            repeated = np.float32(q[i] + np.float32(load(here, i) * factors[1]))
            mine[i] = q[i] if magnitude_bits(repeated) >= top else np.float32(0)
    return bool(largest < INFINITY)


def select_adacomp(
    x: Gradient,
    bin_elems: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> int:
    source, some = source_of(x, residual, loss_scale), scratch("adacomp.some", x.size, np.float32)
    before = residual[:1].copy() if residual is not None else None
    finite: list[bool] = []

    def work(low: int, high: int) -> None:
        part = source.x[low:high], None if residual is None else residual[low:high]
        finite.append(_keep_what_matters(*part, source.factors, bin_elems, some[low:high]))

    over_slices(x.size, bin_elems, work)
    if not all(finite):
        if residual is not None:
            residual[:1] = before
        return mark(indices, values)
    count = select_largest(some, indices.size, _SMALLEST, indices, values, None, 1.0)
    send(indices[:count], values[:count], np.float32(loss_scale), residual)
    return count
