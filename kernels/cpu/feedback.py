"""Residuals for NumPy arrays; see :mod:`compressa.kernels.feedback`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ._feedback import inverse, largest_bits, magnitude_bits
from ._jit import jit

_INFINITY = np.uint32(0x7F800000)
_PIECE = 4096  # elements looked at before the first non-finite one can end the search


@jit
def _absorb(x: F32, residual: F32, kept: F32, scale: np.float32, back: np.float32) -> None:
    for i in range(x.size):
        p = x[i] + scale * residual[i]
        x[i] = p
        kept[i] = p * back if magnitude_bits(p) < _INFINITY else residual[i]


@jit
def _all_finite(x: F32) -> bool:
    for low in range(0, x.size, _PIECE):
        piece = x[low : min(low + _PIECE, x.size)]
        if largest_bits(piece, None, np.float32(1)) >= _INFINITY:
            return False
    return True


def absorb_residual(x: F32, residual: F32, kept: F32, scale: float = 1.0) -> None:
    """See :func:`compressa.kernels.feedback.absorb_residual`."""
    _absorb(x, residual, kept, np.float32(scale), inverse(scale))


def all_finite(x: F32) -> bool:
    """See :func:`compressa.kernels.feedback.all_finite`."""
    return bool(_all_finite(x.reshape(-1)))
