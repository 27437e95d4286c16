"""Increasing integers in about 2 + log2(n / k) bits each: Elias-Fano.

Elias, "Efficient Storage and Retrieval by Content and Address of Static Files", JACM 1974; Fano,
"On the Number of Bits Required to Implement an Associative Memory", MIT Project MAC 1971. The low
bits of each index are stored as they are; of the high bits the differences, each as so many zeros
and a one. The length follows from n and k alone, and lies within half a bit per index of the
fewest that can tell all sets of k indices apart.

Wire format, for k indices below n, with l = floor(log2(n / k)) low bits:

* bit stream of the k low parts, ``l`` bits each, if l > 0 (format in :mod:`.bitpack`);
* bitmap of ((n - 1) >> l) + k bits, in which bit (index >> l) + i is set for the i-th index.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ._arrays import U8, U32, check_array
from ._backends import backend
from .bitpack import (
    check_increasing,
    is_increasing,
    pack_bitmap,
    pack_bits,
    packed_bytes,
    unpack_bitmap,
    unpack_bits,
)
from .scratch import scratch


class Layout(NamedTuple):
    """Low bits of each index, bytes of all of them, bits of the bitmap, and bytes of everything."""

    low_bits: int
    low_bytes: int
    high_bits: int
    size_bytes: int


@lru_cache(maxsize=1 << 12)  # a few layers' sizes, and the numbers that a threshold finds
def layout_of(k: int, n: int) -> Layout:
    """Return how k increasing indices below n are laid out."""
    if not k:
        return Layout(0, 0, 0, 0)
    low_bits = max((n // k).bit_length() - 1, 0)
    low_bytes, high_bits = packed_bytes(k, low_bits), (n - 1 >> low_bits) + k
    return Layout(low_bits, low_bytes, high_bits, low_bytes + packed_bytes(high_bits, 1))


def elias_fano_bytes(k: int, n: int) -> int:
    """Return the bytes that increasing indices take; none at all take none.

    Args:
        k: How many there are.
        n: Elements of the vector that is indexed; the indices are below it.
    """
    return layout_of(k, n).size_bytes


def pack_increasing(indices: U32, n: int, out: U8, *, check: bool = True) -> None:
    """Write increasing indices below ``n`` (format above).

    Example:
        >>> import numpy as np
        >>> out = np.empty(elias_fano_bytes(4, 64), np.uint8)
        >>> pack_increasing(np.array([3, 4, 33, 63], np.uint32), 64, out)
        >>> [f"{byte:08b}" for byte in out]
        ['01000011', '11110001', '01010011']

    Args:
        indices: uint32[k], increasing, each below ``n``.
        n: At most 2**32, less k.
        out: uint8[elias_fano_bytes(k, n)], overwritten.
        check: Whether to make sure of the indices, which waits for a GPU; a CPU always does.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``n`` is wrong, or the indices are not increasing.
    """
    layout = _checked("indices", indices, n, "out", out)
    if not indices.size:
        return
    low, high = out[: layout.low_bytes], out[layout.low_bytes :]
    if not write_parts(indices, n, layout.low_bits, low, high, check):
        raise ValueError(f"the indices are not strictly increasing numbers below {n}")


def write_parts(indices: U32, n: int, low_bits: int, low: U8, high: U8, check: bool) -> bool:
    """Write low bits and bitmap, if the indices are increasing numbers below n.

    `pack_increasing` has checked all else, so nothing is raised here.

    Args:
        indices: uint32[k], k at least 1.
        n: As in `pack_increasing`.
        low_bits: Of each index.
        low: uint8[packed_bytes(k, low_bits)], overwritten.
        high: uint8, the bytes of the bitmap; overwritten.
        check: As in `pack_increasing`.

    Returns:
        Whether they are; on a GPU nobody looks without ``check``. If not, what was written is void.
    """
    if kernel := backend("elias_fano", indices, low, high):
        return bool(kernel.write_parts(indices, n, low_bits, low, high, check))
    if not is_increasing(indices, n):
        return False
    if low_bits:
        pack_bits(indices, low_bits, low)
    positions = indices >> np.uint32(low_bits)
    positions += np.arange(indices.size, dtype=np.uint32)
    pack_bitmap(positions, 8 * high.size, high)
    return True


def unpack_increasing(packed: U8, n: int, out: U32) -> None:
    """Read increasing indices back (format above).

    The bytes may come from outside: ``out`` has increasing indices below ``n`` afterwards, or the
    call has raised ValueError; where a GPU's answers come later, it may have any indices instead.

    Args:
        packed: uint8[elias_fano_bytes(k, n)].
        n: At most 2**32, less k.
        out: uint32[k], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``n`` is wrong, or the bytes do not stand for increasing
            indices below ``n``; ``out`` holds rubbish then.
    """
    layout = _checked("out", out, n, "packed", packed)
    if not out.size:
        return
    lows = scratch("elias_fano.lows", out.size, np.uint32, beside=packed)
    if layout.low_bits:
        unpack_bits(packed[: layout.low_bytes], layout.low_bits, lows)
    unpack_bitmap(packed[layout.low_bytes :], layout.high_bits, out)
    join(out, lows, layout.low_bits)
    check_increasing(out, n)


def join(positions: U32, lows: U32, low_bits: int) -> None:
    """Turn the positions of bits in the bitmap into the indices, in place.

    Args:
        positions: uint32[k], increasing; the indices afterwards.
        lows: uint32[k], the low bits of each; not looked at if there are none.
        low_bits: How many each index has.
    """
    if kernel := backend("elias_fano", positions, lows):
        kernel.join(positions, lows, low_bits)
        return
    positions -= np.arange(positions.size, dtype=np.uint32)
    if low_bits:
        positions[:] = (positions << np.uint32(low_bits)) | lows


def _checked(name: str, indices: U32, n: int, packed_name: str, packed: U8) -> Layout:
    """Where the parts of the packed bytes are."""
    check_array(name, indices, np.uint32, writable=name == "out")
    k = indices.size
    if not k <= n <= 2**32 - k:
        raise ValueError(f"n must lie between k = {k} and 2**32 - k, not {n}")
    layout = layout_of(k, n)
    size_bytes = (layout.size_bytes,)
    check_array(packed_name, packed, np.uint8, size_bytes, writable=packed_name == "out")
    return layout
