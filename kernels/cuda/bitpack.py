"""Bit packing on a GPU; see :mod:`compressa.kernels.bitpack`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ..bitpack import packed_bytes
from ._device import CTA, device, launch
from ._work import ask, threads_for

_TILES = 2048
"""At most: few enough to sum their counts in one turn, and enough to keep a GPU busy."""
_WORD_BYTES = 8  # of a bitmap that is listed
_END = 2**32


def pack_bits(values: U32, width: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bits`."""
    threads = threads_for(packed_bytes(values.size, width) + 3, 4)
    arguments = values, np.int64(values.size), np.int32(width), out, None
    launch("bitpack", "pack_bits", *threads, *arguments)


def unpack_bits(packed: U8, width: int, out: U32) -> None:
    """See :func:`compressa.kernels.bitpack.unpack_bits`."""
    arguments = packed, np.int32(width), out, np.int64(out.size)
    launch("bitpack", "unpack_bits", *threads_for(out.size, 4), *arguments)


def pack_bitmap(indices: U32, n: int, out: U8) -> None:
    """See :func:`compressa.kernels.bitpack.pack_bitmap`."""
    launch("bitpack", "clear_bytes", *threads_for(out.size, 16), out, np.int64(out.size), None)
    arguments = indices, np.int64(indices.size), out
    launch("bitpack", "set_bits", *threads_for(indices.size, 1), *arguments)


def count_bitmap(bitmap: U8) -> int:
    """Number of bits that are set; waits for the GPU."""
    threads = threads_for(bitmap.size, 16)
    return ask("bitpack", "count_bits", *threads, bitmap, np.int64(bitmap.size))


def unpack_bitmap(bitmap: U8, indices: U32) -> None:
    """Write the positions of the set bits; there is room for all of them."""
    words = bitmap.size // _WORD_BYTES + 2  # the first and the last may have a few bytes only
    turns = -(-words // CTA)  # in each of which all threads of a block take a word
    tile = -(-turns // _TILES)
    tiles = -(-turns // tile)
    counts = device().empty(tiles + 1, np.int64)
    cut = bitmap, np.int64(bitmap.size), np.int64(tile * CTA), np.int64(tiles), counts
    launch("bitpack", "count_tiles", tiles, CTA, *cut)
    launch("bitpack", "scan_counts", 1, CTA, counts, np.int64(tiles))
    launch("bitpack", "list_tiles", tiles, CTA, *cut, indices)


def largest(indices: U32) -> int:
    """The largest index; waits for the GPU."""
    threads = threads_for(indices.size, 4)
    return ask("bitpack", "find_largest", *threads, indices, np.int64(indices.size))


def is_increasing(indices: U32) -> bool:
    """Whether each index is larger than the one before; waits for the GPU."""
    arguments = indices, np.int64(indices.size), np.int64(_END)
    return not ask("bitpack", "find_disorder", *threads_for(indices.size, 4), *arguments)
