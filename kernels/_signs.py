"""Bits, packed in eight planes."""

from __future__ import annotations

import numpy as np

from ._arrays import U8

Bits = np.ndarray[tuple[int], np.dtype[np.bool_]]


def pack_planes(negative: Bits) -> U8:
    """Bit j of byte i is element j * m + i, for m bytes."""
    width = -(-negative.size // 8)
    planes = np.zeros(8 * width, np.bool_)
    planes[: negative.size] = negative
    return np.packbits(planes.reshape(8, width).T, axis=1, bitorder="little")[:, 0]


def unpack_planes(bits: U8, size: int) -> Bits:
    """The reverse of `pack_planes`."""
    planes = np.unpackbits(bits[:, None], axis=1, bitorder="little").T
    return planes.ravel()[:size].astype(np.bool_)
