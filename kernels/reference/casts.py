"""Casts in NumPy; see :mod:`compressa.kernels.casts`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._arrays import F32, Gradient
from ..casts import Half
from ._feedback import combine, effective, remainder, widened
from ._rounding import put


def narrow(x: F32, out: Half, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.casts.narrow`."""
    p = effective(x, residual, scale)
    put(p, out)
    if residual is not None:
        error = remainder(p, widened(out), scale)
        whole = remainder(p, np.zeros_like(p), scale)
        sendable = np.empty_like(out)
        put(whole, sendable)
        kept = np.where(np.isfinite(widened(sendable)), whole, residual)
        residual[:] = np.where(np.isfinite(widened(out)), error, kept)


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    """See :func:`compressa.kernels.casts.widen`."""
    combine(out, widened(x), weight, add)


def sum_casts(x: Sequence[Half], out: Gradient, *, weight: float = 1.0) -> None:
    """See :func:`compressa.kernels.casts.sum_casts`."""
    total = np.zeros(out.size, np.float32)
    for one in x:
        widen(one, total, weight=weight, add=True)
    put(total, out)
