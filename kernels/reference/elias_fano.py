"""Elias-Fano in NumPy; see :mod:`compressa.kernels.elias_fano`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from .bitpack import is_increasing, pack_bitmap, pack_bits


def write_parts(indices: U32, n: int, low_bits: int, low: U8, high: U8, check: bool) -> bool:
    """Write both parts, if the indices are increasing numbers below n; return whether they are."""
    if not is_increasing(indices, n):
        return False
    places = indices >> np.uint32(low_bits)
    places += np.arange(indices.size, dtype=np.uint32)
    pack_bits(indices, low_bits, low)
    pack_bitmap(places, 8 * high.size, high)
    return True


def join(places: U32, lows: U32, low_bits: int) -> None:
    """Turn the places of the bits into the indices; without low bits, ``lows`` is not looked at."""
    places -= np.arange(places.size, dtype=np.uint32)
    if low_bits:
        places[:] = (places << np.uint32(low_bits)) | lows
