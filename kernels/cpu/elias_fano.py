"""Elias-Fano for NumPy arrays; see :mod:`compressa.kernels.elias_fano`."""

from __future__ import annotations

import numpy as np

from .._arrays import U32
from ._jit import jit


@jit
def _place_highs(indices: U32, low_bits: np.uint32, places: U32) -> None:
    for i in range(indices.size):
        places[i] = np.uint32(np.uint32(indices[i] >> low_bits) + np.uint32(i))


@jit
def _join(places: U32, lows: U32, low_bits: np.uint32) -> None:
    mask = np.uint32((np.uint32(1) << low_bits) - np.uint32(1))
    for i in range(places.size):
        high = np.uint32(np.uint32(places[i] - np.uint32(i)) << low_bits)
        places[i] = np.uint32(high | np.uint32(lows[i] & mask))


def place_highs(indices: U32, low_bits: int, places: U32) -> None:
    """Where in the bitmap of the high parts each index has its bit."""
    _place_highs(indices, np.uint32(low_bits), places)


def join(places: U32, lows: U32, low_bits: int) -> None:
    """Turn the places of the bits into the indices."""
    _join(places, lows, np.uint32(low_bits))
