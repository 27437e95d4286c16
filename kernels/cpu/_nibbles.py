"""Codes of four or two bits, packed in planes: byte i holds codes i, i + m, i + 2 m, ..."""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ._jit import inlined, lean_nested
from ._view import view


@lean_nested
def bytes_of(elems: int, bits: int) -> int:
    """Bytes that so many codes fill: by a shift, since a block has no time for a division."""
    return (elems * bits + 7) >> 3


@inlined
def pack_planes(q: U8, bits: int, codes: U8) -> None:
    """Planar: byte i takes the codes i, i + m, i + 2 m, ... from the lowest bits upwards."""
    m = codes.size
    if bits == 8:
        for i in range(m):
            codes[i] = q[i]
    elif bits == 4:
        low, high = view(q, 0, m), view(q, m, 2 * m)
        for i in range(m):
            codes[i] = np.uint8(low[i] | np.uint8(high[i] << 4))
    else:
        first, second = view(q, 0, m), view(q, m, 2 * m)
        third, fourth = view(q, 2 * m, 3 * m), view(q, 3 * m, 4 * m)
        for i in range(m):
            low = np.uint8(first[i] | np.uint8(second[i] << 2))
            codes[i] = np.uint8(low | np.uint8(third[i] << 4) | np.uint8(fourth[i] << 6))


@inlined
def unpack_planes(codes: U8, bits: int, q: U8) -> None:
    """The reverse of `pack_planes`."""
    m = codes.size
    if bits == 4:
        low, high = view(q, 0, m), view(q, m, 2 * m)
        for i in range(m):
            low[i] = np.uint8(codes[i] & np.uint8(15))
            high[i] = np.uint8(codes[i] >> np.uint8(4))
    else:
        first, second = view(q, 0, m), view(q, m, 2 * m)
        third, fourth = view(q, 2 * m, 3 * m), view(q, 3 * m, 4 * m)
        for i in range(m):
            first[i] = np.uint8(codes[i] & np.uint8(3))
            second[i] = np.uint8((codes[i] >> np.uint8(2)) & np.uint8(3))
            third[i] = np.uint8((codes[i] >> np.uint8(4)) & np.uint8(3))
            fourth[i] = np.uint8(codes[i] >> np.uint8(6))
