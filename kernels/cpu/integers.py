"""Integers of a shared scale for NumPy arrays; see :mod:`compressa.kernels.integers`."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U32
from ..integers import Integers
from ..philox import FRACTION_BITS, ROW, Noise
from ..threads import over_slices
from ._jit import jit, nested
from ._noise import Key, drawn_at, noise_buffer, noise_key
from ._view import view

_STEPS = float(2**FRACTION_BITS)
_PIECE = ROW  # elements that are rounded at once


@nested
def _round_piece(x: F32, factor: float, most: float, noise: U32, out: Integers) -> None:
    for i in range(x.size):
        t = float(x[i]) * factor
        t = t if t < most else most
        t = t if t > -most else -most
        out[i] = (np.int64(t * _STEPS) + np.int64(noise[i])) >> np.int64(FRACTION_BITS)


@jit
def _round(
    x: F32, factor: float, most: float, key: Key | None, buffer: U32 | None, out: Integers
) -> None:
    for low in range(0, x.size, _PIECE):
        high = min(low + _PIECE, x.size)
        at = drawn_at(key, low, high, buffer)
        noise = view(buffer, at, at + high - low)
        _round_piece(view(x, low, high), factor, most, noise, view(out, low, high))


@jit
def _scale(q: Integers, scale: float, out: F32) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.float64(q[i]) * scale)


def round_to_integers(x: F32, factor: float, most: int, out: Integers, noise: Noise) -> None:

    def work(low: int, high: int) -> None:
        key, buffer = noise_key(noise, low), noise_buffer(noise, _PIECE)
        _round(x[low:high], float(factor), float(most), key, buffer, out[low:high])

    over_slices(x.size, ROW, work)


def scale_integers(q: Integers, scale: float, out: F32) -> None:
    over_slices(out.size, ROW, lambda low, high: _scale(q[low:high], float(scale), out[low:high]))
