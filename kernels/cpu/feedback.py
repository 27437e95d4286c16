"""Residuals for NumPy arrays; see :mod:`compressa.kernels.feedback`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import F32, Gradient
from ._feedback import factors_of, magnitude_bits
from ._jit import jit

_INFINITY = np.uint32(0x7F800000)
_EXPONENTS: dict[np.dtype[Any], Any] = {
    np.dtype(np.float16): np.uint16(0x7C00),
    np.dtype(np.uint16): np.uint16(0x7F80),
    np.dtype(np.float32): _INFINITY,
    np.dtype(np.float64): np.uint64(0x7FF << 52),
}
_PIECE = 4096  # elements looked at before the first non-finite one can end the search


@jit
def _absorb(x: F32, residual: F32, kept: F32, loss_scale: np.float32, back: np.float32) -> None:
    for i in range(x.size):
        p = x[i] + loss_scale * residual[i]
        x[i] = p
        kept[i] = p * back if magnitude_bits(p) < _INFINITY else residual[i]


@jit
def _all_below(bits: npt.NDArray[Any], infinity: Any) -> bool:
    """Whether no number, taken as an integer, has all bits of the exponent set."""
    for low in range(0, bits.size, _PIECE):
        piece = bits[low : min(low + _PIECE, bits.size)]
        largest = bits.dtype.type(0)
        for i in range(piece.size):
            largest = max(largest, bits.dtype.type(piece[i] & infinity))
        if largest == infinity:
            return False
    return True


def absorb_residual(x: F32, residual: F32, kept: F32, loss_scale: float = 1.0) -> None:
    _absorb(x, residual, kept, *factors_of(loss_scale))


def all_finite(x: Gradient) -> bool:
    infinity = _EXPONENTS[x.dtype]
    return bool(_all_below(x.reshape(-1).view(infinity.dtype), infinity))
