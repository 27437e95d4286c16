"""Bit packing on a GPU; see :mod:`compressa.kernels.bitpack`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8, U32
from ..bitpack import packed_bytes
from ._arguments import i64
from ._clear import clear
from ._device import CTA, device, launch
from ._later import find_fault
from ._work import threads_for

_TILES = 2048
"""At most: few enough to sum their counts at a time, and enough to keep a GPU busy."""
_WORD_BYTES = 8  # of a bitmap that is listed


def pack_bits(values: U32, width: int, out: U8) -> None:
    threads = threads_for(packed_bytes(values.size, width) + 3, 4)
    arguments = values, i64(values.size), np.int32(width), out, None
    launch("bitpack", "pack_bits", *threads, *arguments)


def unpack_bits(packed: U8, width: int, out: U32) -> None:
    arguments = packed, np.int32(width), out, i64(out.size)
    launch("bitpack", "unpack_bits", *threads_for(out.size, 4), *arguments)


def pack_bitmap(indices: U32, n: int, out: U8) -> None:
    clear(out)
    arguments = indices, i64(indices.size), out, i64(n)
    launch("bitpack", "set_bits", *threads_for(indices.size, 1), *arguments)


def unpack_bitmap(bitmap: U8, n: int, indices: U32) -> bool:
    """Write the positions of the set bits, as many as there is room for.

    Returns:
        Whether they are as many as indices, and all below n; waits for that if it must.
    """
    words = bitmap.size // _WORD_BYTES + 2  # the first and the last may have a few bytes only
    rows = -(-words // CTA)  # in each of which all threads of a block take a word
    tile = -(-rows // _TILES)
    tiles = -(-rows // tile)
    counts = device().empty(tiles + 1, np.int64)
    cut = bitmap, i64(bitmap.size), i64(tile * CTA), i64(tiles), counts
    launch("bitpack", "count_tiles", tiles, CTA, *cut)
    launch("bitpack", "scan_counts", 1, CTA, counts, i64(tiles))
    room = i64(n), indices, i64(indices.size)
    return not find_fault("bitpack", "list_tiles", tiles, CTA, *cut, *room)


def are_below(indices: U32, n: int) -> bool:
    """Whether all indices are below n; waits for that if it must."""
    return not _find_fault("find_too_large", indices, n)


def is_increasing(indices: U32, n: int) -> bool:
    """Whether each is larger than the one before, and the last below n; waits if it must."""
    return not _find_fault("find_disorder", indices, n)


def _find_fault(name: str, indices: U32, n: int) -> bool:
    arguments = indices, i64(indices.size), i64(n)
    return find_fault("bitpack", name, *threads_for(indices.size, 4), *arguments)
