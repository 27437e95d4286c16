"""Bit packing for NumPy arrays; see :mod:`compressa.kernels.bitpack`.

A 64-bit register holds what is not yet written (or not yet used) of the stream. It never has more
than 7 + 32 bits when packing, nor 31 + 8 when unpacking.
"""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ._jit import jit

_BYTE = np.uint64(8)
_ONE = np.uint64(1)


@jit
def _pack(values: U32, width: np.uint64, out: U8) -> None:
    mask = (_ONE << width) - _ONE
    register, held, at = np.uint64(0), np.uint64(0), 0
    for i in range(values.size):
        register |= (np.uint64(values[i]) & mask) << held
        held += width
        while held >= _BYTE:
            out[at] = np.uint8(register)
            at += 1
            register >>= _BYTE
            held -= _BYTE
    if held > np.uint64(0):
        out[at] = np.uint8(register)


@jit
def _unpack(packed: U8, width: np.uint64, out: U32) -> None:
    mask = (_ONE << width) - _ONE
    register, held, at = np.uint64(0), np.uint64(0), 0
    for i in range(out.size):
        while held < width:
            register |= np.uint64(packed[at]) << held
            at += 1
            held += _BYTE
        out[i] = np.uint32(register & mask)
        register >>= width
        held -= width


@jit
def _set_bits(indices: U32, out: U8) -> None:
    out[:] = np.uint8(0)
    for i in range(indices.size):
        index = np.int64(indices[i])
        out[index >> 3] |= np.uint8(1 << (index & 7))


@jit
def _count_bits(bitmap: U8) -> int:
    count = 0
    for i in range(bitmap.size):
        pairs = bitmap[i] - ((bitmap[i] >> 1) & 0x55)
        fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
        count += (fours + (fours >> 4)) & 0x0F
    return count


@jit
def _list_bits(bitmap: U8, indices: U32) -> None:
    at = 0
    for i in range(bitmap.size):
        if bitmap[i] != 0:
            for j in range(8):
                if bitmap[i] >> j & 1:
                    indices[at] = np.uint32(8 * i + j)
                    at += 1


def pack_bits(values: U32, width: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bits`."""
    _pack(values, np.uint64(width), out)


def unpack_bits(packed: U8, width: int, out: U32) -> None:
    """See :func:`compressa.kernels.bitpack.unpack_bits`."""
    _unpack(packed, np.uint64(width), out)


def pack_bitmap(indices: U32, n: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bitmap`."""
    _set_bits(indices, out)


def count_bitmap(bitmap: U8) -> int:
    """Number of bits that are set."""
    return int(_count_bits(bitmap))


def unpack_bitmap(bitmap: U8, indices: U32) -> None:
    """Write the positions of the set bits; there is room for all of them."""
    _list_bits(bitmap, indices)
