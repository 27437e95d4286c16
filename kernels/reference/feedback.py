"""Residuals in NumPy; see :mod:`compressa.kernels.feedback`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, Gradient
from ._feedback import effective, widened


def absorb_residual(x: F32, residual: F32, kept: F32, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.feedback.absorb_residual`."""
    x[:] = effective(x, residual, scale)
    back = np.float32(1) / np.float32(scale)
    kept[:] = np.where(np.isfinite(x), x * back, residual)


def all_finite(x: Gradient) -> bool:
    """See :func:`compressa.kernels.feedback.all_finite`."""
    return bool(np.isfinite(widened(x) if x.dtype == np.uint16 else x).all())
