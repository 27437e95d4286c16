"""Integers in the fewest bits that their range needs, and index sets as bitmaps.

Wire formats (no headers, no padding between values):

* bit stream of ``width`` bits: value v occupies the stream's bits v*width to (v+1)*width - 1, least
  significant first; stream bit s is bit s % 8 of byte s // 8. Unused bits of the last byte are 0.
* bitmap over range(n): element e is bit e % 8 of byte e // 8; bits from n on are 0.
"""

from __future__ import annotations

import numpy as np

from ._arrays import U8, U32, check_array
from ._backends import backend, device_of


def index_width(n: int) -> int:
    """Return the fewest bits, but at least one, that hold every index below ``n``.

    Args:
        n: Elements of the vector that is indexed, not negative.
    """
    return max(1, (n - 1).bit_length()) if n > 0 else 1


def packed_bytes(count: int, width: int) -> int:
    """Return the bytes that a bit stream takes.

    Args:
        count: How many values it has.
        width: Bits of each.
    """
    return (count * width + 7) // 8


def _check_stream(values: U32, values_name: str, width: int, packed: U8) -> None:
    if not 1 <= width <= 32:
        raise ValueError(f"width must lie between 1 and 32, not {width}")
    check_array(values_name, values, np.uint32, writable=values_name == "out")
    name = "packed" if values_name == "out" else "out"
    size_bytes = packed_bytes(values.size, width)
    check_array(name, packed, np.uint8, (size_bytes,), writable=name == "out")


def pack_bits(values: U32, width: int, out: U8) -> None:
    """Write ``values`` as a bit stream (format above).

    Example:
        >>> import numpy as np
        >>> out = np.empty(packed_bytes(3, 5), np.uint8)
        >>> pack_bits(np.array([1, 2, 31], np.uint32), 5, out)
        >>> [f"{byte:08b}" for byte in out]
        ['01000001', '01111100']

    Args:
        values: uint32[count]. Only the low ``width`` bits of each are kept.
        width: Bits per value, 1 to 32.
        out: uint8[packed_bytes(count, width)], overwritten.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or the width is wrong.
    """
    _check_stream(values, "values", width, out)
    if kernel := backend("bitpack", values, out):
        kernel.pack_bits(values, width, out)
        return
    bits = np.unpackbits(values.astype("<u4").view(np.uint8), bitorder="little")
    out[:] = np.packbits(bits.reshape(-1, 32)[:, :width], bitorder="little")


def unpack_bits(packed: U8, width: int, out: U32) -> None:
    """Read a bit stream (format above) back; any bytes are valid input.

    Args:
        packed: uint8[packed_bytes(count, width)].
        width: Bits per value, 1 to 32.
        out: uint32[count], overwritten with values below 2**width.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape, a layout or the width is wrong.
    """
    _check_stream(out, "out", width, packed)
    if kernel := backend("bitpack", packed, out):
        kernel.unpack_bits(packed, width, out)
        return
    bits = np.zeros((out.size, 32), np.uint8)
    stream = np.unpackbits(packed, count=out.size * width, bitorder="little")
    bits[:, :width] = stream.reshape(-1, width)
    out[:] = np.packbits(bits, bitorder="little").view("<u4")


def pack_bitmap(indices: U32, n: int, out: U8, *, check: bool = True) -> None:
    """Write a set of indices below ``n`` as a bitmap (format above).

    Args:
        indices: uint32[k], each below ``n``.
        n: Number of elements that the bitmap spans.
        out: uint8[packed_bytes(n, 1)], overwritten.
        check: Whether to make sure of the indices, as `check_indices` does; a CPU always does.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, or an index is not below ``n``.
    """
    check_array("indices", indices, np.uint32)
    check_array("out", out, np.uint8, (packed_bytes(n, 1),), writable=True)
    if check or device_of(indices) == "cpu":
        check_indices(indices, n)
    if kernel := backend("bitpack", indices, out):
        kernel.pack_bitmap(indices, n, out)
        return
    present = np.zeros(n, np.uint8)
    present[indices] = 1
    out[:] = np.packbits(present, bitorder="little")


def unpack_bitmap(bitmap: U8, n: int, indices: U32) -> None:
    """List the elements of a bitmap (format above) in increasing order.

    The bitmap may come from outside: nothing is written on a CPU unless all of it is valid; and on
    a GPU nothing beyond ``indices``, which hold rubbish where it is not.

    Args:
        bitmap: uint8[packed_bytes(n, 1)].
        n: Number of elements that the bitmap spans, at most 2**32.
        indices: uint32[count], overwritten; so many bits must be set.

    Raises:
        TypeError: A dtype is wrong.
        ValueError: A shape or a layout is wrong, a bit from ``n`` on is set, or more bits are set
            than there are ``indices``, or fewer.
    """
    check_array("bitmap", bitmap, np.uint8, (packed_bytes(n, 1),))
    check_array("indices", indices, np.uint32, writable=True)
    if kernel := backend("bitpack", bitmap, indices):
        valid = kernel.unpack_bitmap(bitmap, n, indices)
    else:
        elements = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        valid = elements.size == indices.size and (elements < n).all()
        if valid:
            indices[:] = elements
    if not valid:
        raise ValueError(f"the bitmap has not {indices.size} bits set, all below {n}")


def check_indices(indices: U32, n: int) -> None:
    """Refuse indices of which one is not below ``n``.

    A GPU is waited for, unless answers come later (`kernels.cuda.answers_later`).

    Args:
        indices: uint32[k], in any order.
        n: Elements of the vector that is indexed.

    Raises:
        ValueError: One of them is ``n`` or larger.
    """
    if indices.size and not are_below(indices, n):
        raise ValueError(f"not all of the {indices.size} indices are below {n}")


def are_below(indices: U32, n: int) -> bool:
    """Whether all indices, of which there is one at least, are below n; see `check_indices`."""
    if kernel := backend("bitpack", indices):
        return bool(kernel.are_below(indices, n))
    return bool((indices < n).all())


def check_increasing(indices: U32, n: int) -> None:
    """Refuse indices that do not increase, or of which one is not below ``n``.

    A GPU is waited for, unless answers come later (`kernels.cuda.answers_later`).

    Args:
        indices: uint32[k].
        n: Elements of the vector that is indexed.

    Raises:
        ValueError: One is not larger than the one before, or the last is ``n`` or larger.
    """
    if indices.size and not is_increasing(indices, n):
        raise ValueError(f"the indices are not strictly increasing numbers below {n}")


def is_increasing(indices: U32, n: int) -> bool:
    """Whether each index is larger than the one before, and the last below n.

    Args:
        indices: uint32[k], k at least 1.
        n: Elements of the vector that is indexed.
    """
    if kernel := backend("bitpack", indices):
        return bool(kernel.is_increasing(indices, n))
    return bool((indices[1:] > indices[:-1]).all() and (indices[-1:] < n).all())
