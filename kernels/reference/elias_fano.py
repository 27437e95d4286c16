"""Elias-Fano in NumPy; see :mod:`compressa.kernels.elias_fano`."""

from __future__ import annotations

import numpy as np

from .._arrays import U32


def place_highs(indices: U32, low_bits: int, places: U32) -> None:
    """Where in the bitmap of the high parts each index has its bit."""
    places[:] = (indices >> np.uint32(low_bits)) + np.arange(indices.size, dtype=np.uint32)


def join(places: U32, lows: U32, low_bits: int) -> None:
    """Turn the places of the bits into the indices; without low bits, ``lows`` is not looked at."""
    places -= np.arange(places.size, dtype=np.uint32)
    if low_bits:
        places[:] = (places << np.uint32(low_bits)) | lows
