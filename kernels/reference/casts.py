"""Casts in NumPy; see :mod:`compressa.kernels.casts`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..casts import Half
from ._feedback import combine, effective, remainder, widened

_QUIET = np.uint32(0x7FC0)


def narrow(x: F32, out: Half, *, residual: F32 | None = None, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.casts.narrow`."""
    p = effective(x, residual, scale)
    _round(p, out)
    if residual is not None:
        error = remainder(p, widened(out), scale)
        whole = remainder(p, np.zeros_like(p), scale)
        kept = np.where(np.isfinite(p), whole, residual)
        residual[:] = np.where(np.isfinite(widened(out)), error, kept)


def _round(x: F32, out: Half) -> None:
    if out.dtype == np.float16:
        out[:] = x.astype(np.float16)
        return
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    out[:] = np.where(np.isnan(x), _QUIET, rounded)


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    """See :func:`compressa.kernels.casts.widen`."""
    combine(out, widened(x), weight, add)
