"""Rows of sparse vectors: where the arrays of each lie, and how its indices are packed.

Arrays are given by their addresses, or by the bytes of a payload at which they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .._arrays import I64, U8, U32
from ..index_formats import INDEX_FORMATS
from ..sparse_parts import COUNT_BYTES, LENGTH_BYTES
from ._jit import jit, nested
from ._rank import sample_size
from ._view import view
from .bitpack import below, list_bitmap, pack_stream, set_bits, unpack_stream
from .elias_fano import join_parts, write_highs

_BITS, _BITMAP, _ELIAS_FANO = map(INDEX_FORMATS.index, ("bits", "bitmap", "elias_fano"))
_SMALLEST = -1


# The words of a row, which is a vector.
AT = 0  # address of its values; 0 if they are not there
ELEMS = 1  # how many these are
KEPT = 2  # how many a payload holds
VALUES = 3  # where they are: the address, or the byte of a payload
INDICES = 4  # the same of their indices
INDEX_BYTES = 5  # bytes of these
FORM = 6  # number of their format
WIDTH = 7  # bits of each in a stream; by Elias-Fano, the low ones
LOW_BYTES = 8  # bytes of all low bits
HIGH_BITS = 9  # bits of the bitmap of high ones
RESIDUAL = 10  # address of the residual; 0 for none
SAMPLE = 11  # elements that a guess looks at
_WORDS = 12


def numbers_of(forms: Iterable[str]) -> I64:
    """Return the numbers of formats of indices, or of "auto"."""
    numbers = [_SMALLEST if form == "auto" else INDEX_FORMATS.index(form) for form in forms]
    return np.array(numbers, np.int64)


def table(wheres: Iterable[int], sizes: Sequence[int], residuals: Iterable[int] = ()) -> I64:
    """The rows of vectors, without what `_lay_out` writes."""
    rows = np.zeros((len(sizes), _WORDS), np.int64)
    rows[:, AT], rows[:, ELEMS] = list(wheres), sizes
    rows[:, SAMPLE] = list(map(sample_size, sizes))
    rows[:, RESIDUAL] = list(residuals) or 0
    return rows


@nested
def _bit_length(number: int) -> int:
    bits = 0
    while number > 0:
        number, bits = number >> 1, bits + 1
    return bits


@nested
def _bytes_of(bits: int) -> int:
    return (bits + 7) >> 3


@nested
def _lay_out(row: I64, kept: int, start: int, form: int, itemsize: int) -> None:
    """Write to a row where so many values and their indices are, as `index_formats` lays them out.

    Args:
        row: Of the vector.
        kept: How many a payload holds.
        start: Where they begin.
        form: Number of the indices' format, or of the smallest.
        itemsize: Bytes of a value.
    """
    last, width, low, high_bits = row[ELEMS] - 1, 1, 0, 0
    if last > 0:
        width = _bit_length(last)
    if kept > 0:
        low = _bit_length(row[ELEMS] // kept) - 1
        high_bits = (last >> low) + kept
    low_bytes = _bytes_of(kept * low)
    stream, bitmap = _bytes_of(kept * width), _bytes_of(row[ELEMS])
    parted = low_bytes + _bytes_of(high_bits)
    if form == _SMALLEST:
        form = _BITS
        if bitmap < stream:
            form = _BITMAP
        if parted < min(stream, bitmap):
            form = _ELIAS_FANO
    size = stream
    if form == _BITMAP:
        size = bitmap
    elif form == _ELIAS_FANO:
        size, width = parted, low
    row[KEPT], row[VALUES] = kept, start
    row[INDICES], row[INDEX_BYTES] = start + kept * itemsize, size
    row[FORM], row[WIDTH] = form, width
    row[LOW_BYTES], row[HIGH_BITS] = low_bytes, high_bits


@jit
def lay_out_rows(rows: I64, kept: I64, starts: I64, forms: I64, itemsize: int) -> None:
    """Write to each row where so many values and their indices are; see `_lay_out`."""
    for r in range(rows.shape[0]):
        _lay_out(rows[r], kept[r], starts[r], forms[r], itemsize)


@nested
def _u32(payload: U8, begin: int) -> int:
    number = np.int64(0)
    for i in range(4):
        number |= np.int64(payload[begin + i]) << np.int64(8 * i)
    return int(number)


@jit
def locate_rows(payload: U8, rows: I64, most: I64, forms: I64, first: int, itemsize: int) -> bool:
    """Write to rows where a payload has its parts; return whether it is as it says of itself."""
    begin, end = first, payload.size
    for r in range(rows.shape[0]):
        start = begin + LENGTH_BYTES
        if start + COUNT_BYTES > end:
            return False
        length, count = _u32(payload, begin), _u32(payload, start)
        if length > end - start or count > most[r]:
            return False
        _lay_out(rows[r], count, start + COUNT_BYTES, forms[r], itemsize)
        if length != COUNT_BYTES + count * itemsize + rows[r, INDEX_BYTES]:
            return False
        begin = start + ((length + 7) >> 3 << 3)
    return bool(begin == end)


@nested
def write(indices: U32, row: I64, packed: U8) -> None:
    """Pack increasing indices."""
    if row[FORM] == _BITMAP:
        set_bits(indices, packed)
    elif row[FORM] == _BITS:
        pack_stream(indices, np.uint64(row[WIDTH]), packed)
    else:
        if row[WIDTH]:
            pack_stream(indices, np.uint64(row[WIDTH]), view(packed, 0, row[LOW_BYTES]))
        high = view(packed, row[LOW_BYTES], packed.size)
        write_highs(indices, np.uint32(row[WIDTH]), high)


@nested
def read(packed: U8, row: I64, lows: U32, indices: U32) -> bool:
    """Unpack indices; return whether they are increasing and below the vector's end."""
    if row[FORM] == _BITMAP:
        return bool(list_bitmap(packed, row[ELEMS], indices))
    if row[FORM] == _BITS:
        unpack_stream(packed, np.uint64(row[WIDTH]), indices)
        return bool(below(indices, row[ELEMS]))
    split = row[LOW_BYTES]
    if not list_bitmap(view(packed, split, packed.size), row[HIGH_BITS], indices):
        return False
    if row[WIDTH]:
        unpack_stream(view(packed, 0, split), np.uint64(row[WIDTH]), lows)
    join_parts(indices, lows, np.uint32(row[WIDTH]))
    return bool(below(indices, row[ELEMS]))
