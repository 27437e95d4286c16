"""Residuals on a GPU; see :mod:`compressa.kernels.feedback`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arrays import F32, Gradient
from ._arguments import feedback, i64
from ._device import launch
from ._later import ask
from ._work import batches_for, threads_for

_EXPONENTS: dict[np.dtype[Any], int] = {
    np.dtype(np.float16): 0x7C00,
    np.dtype(np.uint16): 0x7F80,
    np.dtype(np.float32): 0x7F800000,
    np.dtype(np.float64): 0x7FF00000,  # of the upper half
}


def absorb_residual(x: F32, residual: F32, kept: F32, loss_scale: float = 1.0) -> None:
    _, factor, back = feedback(residual, loss_scale)
    arguments = x, residual, kept, factor, back, i64(x.size)
    launch("feedback", "absorb_residual", *batches_for(x.size), *arguments)


def all_finite(x: Gradient) -> bool:
    """Waits for the GPU."""
    itemsize = x.dtype.itemsize
    size_bytes, exponent = i64(x.size * itemsize), np.uint32(_EXPONENTS[x.dtype])
    name, threads = f"find_nonfinite_{8 * itemsize}", threads_for(int(size_bytes), 2 * 16)
    return not ask("feedback", name, *threads, x, size_bytes, exponent)
