"""Bit packing in NumPy; see :mod:`compressa.kernels.bitpack`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32


def pack_bits(values: U32, width: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bits`."""
    bits = np.unpackbits(values.astype("<u4").view(np.uint8), bitorder="little")
    out[:] = np.packbits(bits.reshape(-1, 32)[:, :width], bitorder="little")


def unpack_bits(packed: U8, width: int, out: U32) -> None:
    """See :func:`compressa.kernels.bitpack.unpack_bits`."""
    bits = np.zeros((out.size, 32), np.uint8)
    stream = np.unpackbits(packed, count=out.size * width, bitorder="little")
    bits[:, :width] = stream.reshape(-1, width)
    out[:] = np.packbits(bits, bitorder="little").view("<u4")


def pack_bitmap(indices: U32, n: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bitmap`."""
    present = np.zeros(n, np.uint8)
    present[indices] = 1
    out[:] = np.packbits(present, bitorder="little")


def unpack_bitmap(bitmap: U8, n: int, indices: U32) -> bool:
    """Write the positions of the set bits if they are as many as indices, and all below n."""
    positions = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
    if positions.size != indices.size or (positions >= n).any():
        return False
    indices[:] = positions
    return True


def are_below(indices: U32, n: int) -> bool:
    """Whether all indices are below n."""
    return bool((indices < n).all())


def is_increasing(indices: U32, n: int) -> bool:
    """Whether each index is larger than the one before, and the last below n."""
    return bool((indices[1:] > indices[:-1]).all() and (indices[-1:] < n).all())
