"""Index formats: how a sparse payload holds increasing indices below n.

    bits        ceil(log2 n) bits each, one little-endian bit stream
    bitmap      n bits: bit e % 8 of byte e // 8
    elias_fano  about 2 + log2(n / k) bits each

The first two are in :mod:`.bitpack`, the third in :mod:`.elias_fano`. Their sizes follow from n
and the number of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ._arrays import U8, U32
from .bitpack import (
    check_increasing,
    index_width,
    pack_bitmap,
    pack_bits,
    packed_bytes,
    unpack_bitmap,
    unpack_bits,
)
from .elias_fano import elias_fano_bytes, pack_increasing, unpack_increasing


def _bits_bytes(k: int, n: int) -> int:
    return packed_bytes(k, index_width(n))


def _bitmap_bytes(k: int, n: int) -> int:
    return packed_bytes(n, 1)


_BYTES: dict[str, Callable[[int, int], int]] = {
    "bits": _bits_bytes,
    "bitmap": _bitmap_bytes,
    "elias_fano": elias_fano_bytes,
}
INDEX_FORMATS = tuple(_BYTES)


@lru_cache(maxsize=1 << 12)  # a few layers' sizes, and the numbers that a threshold finds
def smallest_format(k: int, n: int) -> str:
    """Return the format that takes the fewest bytes; of equal ones, the first.

    Args:
        k: How many indices; at most n.
        n: They are below it.
    """
    return min(_BYTES, key=lambda name: _BYTES[name](k, n))


def index_bytes(form: str, k: int, n: int) -> int:
    """Return how many bytes k indices below n take.

    Args:
        form: One of `INDEX_FORMATS`.
        k: How many indices; at most n.
        n: They are below it.
    """
    return _BYTES[form](k, n)


def pack_indices(indices: U32, n: int, form: str, out: U8) -> None:
    """Write indices as a selection has found them; a GPU's are not looked at again.

    Args:
        indices: uint32[k], increasing, and below n.
        n: Number of elements chosen from.
        form: One of `INDEX_FORMATS`.
        out: uint8[index_bytes(form, k, n)], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong; or, on a CPU, an index.
    """
    if form == "bits":
        pack_bits(indices, index_width(n), out)
    elif form == "bitmap":
        pack_bitmap(indices, n, out, check=False)
    else:
        pack_increasing(indices, n, out, check=False)


def unpack_indices(packed: U8, n: int, form: str, out: U32) -> None:
    """Read indices back; the bytes may come from outside.

    Args:
        packed: uint8[index_bytes(form, k, n)].
        n: Number of elements chosen from.
        form: One of `INDEX_FORMATS`.
        out: uint32[k], overwritten with increasing indices below n.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or the bytes do not stand for such indices.
    """
    if form == "bits":
        unpack_bits(packed, index_width(n), out)
        check_increasing(out, n)
    elif form == "bitmap":
        unpack_bitmap(packed, n, out)
    else:
        unpack_increasing(packed, n, out)
