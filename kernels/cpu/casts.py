"""Casts for NumPy arrays; see :mod:`compressa.kernels.casts`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32
from ..casts import Half
from ..threads import over_slices
from ._jit import inlined, lean
from ._prefetch import fetch
from ._values import Values, bits_of, load, store
from ._view import view

_ROW = 192  # elements between two rounds of hints to memory
_AHEAD = 768  # both found by trying, on a Sapphire Rapids core


@inlined
def _narrow_row(x: F32, out: Values) -> None:
    for i in range(x.size):
        store(out, i, x[i])


@lean
def _narrow(x: F32, out: Values) -> None:
    for low in range(0, x.size, _ROW):
        high = min(low + _ROW, x.size)
        fetch(x, low + _AHEAD, high + _AHEAD)
        fetch(out, low + _AHEAD, high + _AHEAD)
        _narrow_row(view(x, low, high), view(out, low, high))


@inlined
def _widen_row(x: Values, out: F32, weight: np.float32, add: bool) -> None:
    if add:
        for i in range(out.size):
            out[i] += weight * load(x, i)
    else:
        for i in range(out.size):
            out[i] = weight * load(x, i)


@lean
def _widen(x: Values, out: F32, weight: np.float32, add: bool) -> None:
    for low in range(0, out.size, _ROW):
        high = min(low + _ROW, out.size)
        fetch(x, low + _AHEAD, high + _AHEAD)
        fetch(out, low + _AHEAD, high + _AHEAD)
        _widen_row(view(x, low, high), view(out, low, high), weight, add)


def narrow(x: F32, out: Half) -> None:
    """See :func:`compressa.kernels.casts.narrow`."""
    bits = bits_of(out)
    over_slices(x.size, _ROW, lambda low, high: _narrow(x[low:high], bits[low:high]))


def widen(x: Half, out: F32, *, weight: float = 1.0, add: bool = False) -> None:
    """See :func:`compressa.kernels.casts.widen`."""
    bits, factor = bits_of(x), np.float32(weight)

    def work(low: int, high: int) -> None:
        _widen(bits[low:high], out[low:high], factor, add)

    over_slices(out.size, _ROW, work)
