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

import numpy as np

from ._arrays import U8, U32, check_array
from ._backends import backend
from .bitpack import check_increasing, packed_bytes, unpack_bitmap, unpack_bits
from .scratch import scratch


def elias_fano_bytes(k: int, n: int) -> int:
    """Bytes that ``k`` increasing indices below ``n`` take."""
    return packed_bytes(k, _low_bits(k, n)) + packed_bytes(_high_bits(k, n), 1)


def _low_bits(k: int, n: int) -> int:
    return max((n // k).bit_length() - 1, 0) if k else 0


def _high_bits(k: int, n: int) -> int:
    return (n - 1 >> _low_bits(k, n)) + k if k else 0


def pack_increasing(indices: U32, n: int, out: U8) -> None:
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

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``n`` is wrong, or the indices are not increasing.
    """
    low, high, low_bits = _checked("indices", indices, n, "out", out)
    if indices.size and not backend("elias_fano", indices, out).write_parts(
        indices, n, low_bits, low, high
    ):
        raise ValueError(f"the indices are not strictly increasing numbers below {n}")


def unpack_increasing(packed: U8, n: int, out: U32) -> None:
    """Read increasing indices back (format above).

    The bytes may come from outside: ``out`` has increasing indices below ``n`` afterwards, or the
    call has raised ValueError.

    Args:
        packed: uint8[elias_fano_bytes(k, n)].
        n: At most 2**32, less k.
        out: uint32[k], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or ``n`` is wrong, or the bytes do not stand for increasing
            indices below ``n``; ``out`` holds rubbish then.
    """
    low, high, low_bits = _checked("out", out, n, "packed", packed)
    if not out.size:
        return
    lows = scratch("elias_fano.lows", out.size, np.uint32)
    if low.size:
        unpack_bits(low, low_bits, lows)
    count = unpack_bitmap(high, _high_bits(out.size, n), out)
    if count != out.size:
        raise ValueError(f"the high bits of {count} indices, not of {out.size}")
    backend("elias_fano", packed, out).join(out, lows, low_bits)
    check_increasing(out, n)


def _checked(name: str, indices: U32, n: int, packed_name: str, packed: U8) -> tuple[U8, U8, int]:
    """The parts of the packed bytes, and the number of low bits."""
    check_array(name, indices, np.uint32, writable=name == "out")
    k = indices.size
    if not k <= n <= 2**32 - k:
        raise ValueError(f"n must lie between k = {k} and 2**32 - k, not {n}")
    low_bits = _low_bits(k, n)
    split, size_bytes = packed_bytes(k, low_bits), elias_fano_bytes(k, n)
    check_array(packed_name, packed, np.uint8, (size_bytes,), writable=packed_name == "out")
    return packed[:split], packed[split:], low_bits
