"""Top-k for NumPy arrays; see :mod:`compressa.kernels.topk` and `_selection.py`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32, Gradient
from ..threads import over_slices
from ._feedback import factors_of
from ._jit import jit
from ._selection import select_largest
from ._values import Values, load
from .bitpack import is_increasing


@jit
def _scatter_add(indices: U32, values: F32, out: F32, weight: np.float32) -> None:
    for i in range(indices.size):
        out[indices[i]] += weight * values[i]


@jit
def give_back_unsent(
    residual: F32 | None, indices: U32, exact: F32, sent: Values, back: np.float32
) -> None:
    """Add to the residual, if there is one, what a cast lost."""
    if residual is not None:
        for i in range(indices.size):
            if np.isfinite(exact[i]):
                value = load(sent, i)
                arrived = value if np.isfinite(value) else np.float32(0)
                lost = np.float32((exact[i] - arrived) * back)
                if lost != 0:
                    residual[indices[i]] += lost


def select_top_k(
    x: Gradient,
    k: int,
    indices: U32,
    values: F32,
    *,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> None:
    if select_largest(x, k, 0, indices, values, residual, loss_scale) < 0 and k:
        indices[:] = np.arange(k)
        values[0], values[1:] = np.nan, 0


def scatter_add(indices: U32, values: F32, out: F32, *, weight: float = 1.0) -> None:
    factor = np.float32(weight)
    if not is_increasing(indices, out.size):
        _scatter_add(indices, values, out, factor)
        return

    def work(low: int, high: int) -> None:
        _scatter_add(indices[low:high], values[low:high], out, factor)

    over_slices(indices.size, 1, work)


def return_unsent(
    residual: F32, indices: U32, exact: F32, sent: F32, *, loss_scale: float = 1.0
) -> None:
    give_back_unsent(residual, indices, exact, sent, factors_of(loss_scale)[1])
