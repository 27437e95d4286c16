"""Elias-Fano for NumPy arrays; see :mod:`compressa.kernels.elias_fano`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ._jit import jit
from .bitpack import FEW, below, pack_bits, pack_stream


@jit
def write_highs(indices: U32, low_bits: np.uint32, high: U8) -> None:
    """Write the bitmap."""
    high[:] = np.uint8(0)
    for i in range(indices.size):
        bit = np.int64(indices[i] >> low_bits) + i
        high[bit >> 3] |= np.uint8(1 << (bit & 7))


@jit
def _write_few(indices: U32, n: int, low_bits: np.uint32, low: U8, high: U8) -> bool:
    increasing = below(indices, n)
    if increasing:
        if low_bits:
            pack_stream(indices, np.uint64(low_bits), low)
        write_highs(indices, low_bits, high)
    return increasing


@jit
def join_parts(positions: U32, lows: U32, low_bits: np.uint32) -> None:
    """Turn the positions of the bits into the indices."""
    mask = np.uint32((np.uint32(1) << low_bits) - np.uint32(1))
    for i in range(positions.size):
        high = np.uint32(np.uint32(positions[i] - np.uint32(i)) << low_bits)
        positions[i] = np.uint32(high | np.uint32(lows[i] & mask))


def write_parts(indices: U32, n: int, low_bits: int, low: U8, high: U8, check: bool) -> bool:
    """Write both parts, if the indices are increasing numbers below n; return whether they are."""
    if indices.size <= FEW:
        return bool(_write_few(indices, n, np.uint32(low_bits), low, high))
    if not below(indices, n):
        return False
    if low_bits:
        pack_bits(indices, low_bits, low)
    write_highs(indices, np.uint32(low_bits), high)
    return True


def join(positions: U32, lows: U32, low_bits: int) -> None:
    join_parts(positions, lows, np.uint32(low_bits))
