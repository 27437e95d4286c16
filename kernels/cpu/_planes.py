"""Codes of one, two and four bits, packed in planes: byte i holds codes i, i + m, i + 2 m, ...

There are m bytes, and the first code lies in the lowest bits.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from numba.core import types

from .._arrays import F32, U8
from ._jit import inlined, intrinsic, lean_nested
from ._vector import Memory, for_rows, hints_of
from ._view import view

SIGN = np.uint32(1 << 31)


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


@lean_nested
def sign_of(value: np.float32) -> np.uint32:
    """The highest bit, set for numbers below 0: neither -0 nor NaN, whose sign a GPU drops."""
    return SIGN if value < np.float32(0) else np.uint32(0)


@intrinsic
def pack_whole(typing: Any, p: Any, bits: Any, x: Any, left: Any, position: Any) -> Any:
    """The signs of exactly eight values to a byte.

    Asks memory for a quarter as many elements of the streams ``x`` and ``left``, if they are not
    None, from ``position``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = Memory(context, builder, p, arguments[0])
        packed = Memory(context, builder, bits, arguments[1])

        def row(at: Any, lanes: int) -> None:
            planes = []
            for plane in range(8):
                index = builder.add(at, builder.mul(packed.size, at.type(plane)))
                planes.append(values.read(index, lanes).negative() << plane)
            packed.write(at, reduce(or_, planes))

        hints = hints_of(context, builder, signature, arguments, lines=2)
        for_rows(builder, packed.size, row, hints)
        return context.get_dummy_value()

    return types.void(p, bits, x, left, position), generate


@lean_nested
def pack_short(p: F32, bits: U8) -> None:
    """The same where the last plane is shorter."""
    for i in range(bits.size):
        packed = np.uint32(0)
        for j in range(8):
            if j * bits.size + i < p.size:
                packed |= np.uint32(sign_of(p[j * bits.size + i]) >> np.uint32(31 - j))
        bits[i] = np.uint8(packed)
