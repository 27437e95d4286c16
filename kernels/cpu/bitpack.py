"""Bit packing for NumPy arrays; see :mod:`compressa.kernels.bitpack`.

Streams are read and written eight bytes at a time. What does not fit into a whole word at the end
goes byte by byte, so that nothing beyond the array is touched.
"""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ..threads import over_slices
from ._bytes import load_word, ones, store_word, trailing_zeros
from ._jit import jit, nested

_ONE = np.uint64(1)
_BYTE = np.uint64(8)
_IN_BYTE = np.uint64(7)
_NONE = np.uint64(0)
_WORD_BYTES = 8
_WORD_BITS = 64
FEW = 1 << 16  # packed by one thread, with nothing cut
_MOST_PAIRED = np.uint64(28)  # two such values and seven bits that wait for them fit a word


@nested
def _pack_rest(
    values: U32, width: np.uint64, out: U8, register: np.uint64, held: np.uint64, at: int
) -> None:
    mask = (_ONE << width) - _ONE
    for i in range(values.size):
        register |= (np.uint64(values[i]) & mask) << held
        held += width
        while held >= _BYTE:
            out[at] = np.uint8(register & np.uint64(0xFF))
            at += 1
            register >>= _BYTE
            held -= _BYTE
    if held > _NONE:
        out[at] = np.uint8(register & np.uint64(0xFF))


@jit
def pack_stream(values: U32, width: np.uint64, out: U8) -> None:
    """Write a bit stream."""
    mask, paired = (_ONE << width) - _ONE, width <= _MOST_PAIRED
    step = 2 if paired else 1
    register, held, at, i = _NONE, _NONE, 0, 0
    while i + step <= values.size and at + _WORD_BYTES <= out.size:
        group = np.uint64(values[i]) & mask
        if paired:
            group |= (np.uint64(values[i + 1]) & mask) << width
        register |= group << held
        held += width * np.uint64(step)
        store_word(out, at, register)
        at += int(np.int64(held >> np.uint64(3)))
        register >>= held & ~_IN_BYTE
        held &= _IN_BYTE
        i += step
    _pack_rest(values[i:], width, out, register, held, at)


@jit
def unpack_stream(packed: U8, width: np.uint64, out: U32) -> None:
    """Read a bit stream."""
    mask, bits = (_ONE << width) - _ONE, int(np.int64(width))
    # The last value whose word begins at least eight bytes before the end.
    last = (packed.size - _WORD_BYTES) * 8 // bits if packed.size >= _WORD_BYTES else -1
    whole = min(out.size, last + 1)
    for i in range(whole):
        bit = i * bits
        word = load_word(packed, bit >> 3)
        out[i] = np.uint32((word >> np.uint64(bit & 7)) & mask)
    for i in range(whole, out.size):
        word, first = _NONE, i * bits >> 3
        for at in range(first, min(first + _WORD_BYTES, packed.size)):
            word |= np.uint64(packed[at]) << np.uint64(8 * (at - first))
        out[i] = np.uint32((word >> np.uint64(i * bits & 7)) & mask)


@jit
def set_bits(indices: U32, out: U8) -> None:
    """Write a bitmap."""
    out[:] = np.uint8(0)
    for i in range(indices.size):
        index = np.int64(indices[i])
        out[index >> 3] |= np.uint8(1 << (index & 7))


@nested
def _count_bits(bitmap: U8) -> int:
    count, whole = _NONE, bitmap.size // _WORD_BYTES * _WORD_BYTES
    for at in range(0, whole, _WORD_BYTES):
        count += ones(load_word(bitmap, at))
    for at in range(whole, bitmap.size):
        count += ones(np.uint64(bitmap[at]))
    return int(np.int64(count))


@nested
def _list_word(word: np.uint64, first: int, indices: U32, found: int) -> int:
    while word != _NONE:
        indices[found] = np.uint32(first + np.int64(trailing_zeros(word)))
        found += 1
        word &= word - _ONE
    return found


@nested
def _list_bits(bitmap: U8, indices: U32) -> None:
    # a literal would be compiled for, too
    found, whole = int(np.int64(0)), bitmap.size // _WORD_BYTES * _WORD_BYTES
    for at in range(0, whole, _WORD_BYTES):
        found = _list_word(load_word(bitmap, at), 8 * at, indices, found)
    for at in range(whole, bitmap.size):
        found = _list_word(np.uint64(bitmap[at]), 8 * at, indices, found)


@jit
def list_bitmap(bitmap: U8, n: int, indices: U32) -> bool:
    """Write the positions of the set bits if they are as many as indices, and all below n."""
    if n & 7 and bitmap[-1] >> (n & 7):
        return False
    right = _count_bits(bitmap) == indices.size
    if right:
        _list_bits(bitmap, indices)
    return right


@jit
def below(indices: U32, n: int) -> bool:
    """Whether the indices are increasing numbers below n."""
    if indices.size and np.int64(indices[-1]) >= n:
        return False
    wrong = np.uint32(0)
    before, after = indices[:-1], indices[1:]
    for i in range(after.size):
        wrong |= np.uint32(after[i] <= before[i])
    return bool(wrong == 0)


@jit
def _largest(indices: U32) -> np.uint32:
    largest = np.uint32(0)
    for i in range(indices.size):
        largest = max(largest, indices[i])
    return largest


def pack_bits(values: U32, width: int, out: U8) -> None:
    bits = np.uint64(width)
    if values.size <= FEW:
        pack_stream(values, bits, out)
        return

    def work(low: int, high: int) -> None:
        pack_stream(values[low:high], bits, out[low * width // 8 : (high * width + 7) // 8])

    over_slices(values.size, 8, work)


def unpack_bits(packed: U8, width: int, out: U32) -> None:

    def work(low: int, high: int) -> None:
        # A few bytes more than belong to the slice, so that its last words can be read whole.
        unpack_stream(packed[low * width // 8 :], np.uint64(width), out[low:high])

    over_slices(out.size, 8, work)


def pack_bitmap(indices: U32, n: int, out: U8) -> None:
    set_bits(indices, out)


def unpack_bitmap(bitmap: U8, n: int, indices: U32) -> bool:
    return bool(list_bitmap(bitmap, n, indices))


def are_below(indices: U32, n: int) -> bool:
    """Whether all indices are below n; a short list would wait for NumPy's own maximum."""
    return int(_largest(indices)) < n


def is_increasing(indices: U32, n: int) -> bool:
    """Whether each index is larger than the one before, and the last below n."""
    return bool(below(indices, n))
