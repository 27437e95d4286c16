"""Additions in the dtype of the values, for what a hop has heard; and the division before them.

Sums of 16 bits are rounded once from float32, to nearest and even, as torch does it.
"""

from __future__ import annotations

import numpy as np

from compressa.kernels.cpu._jit import lean_nested

from ._memory import (
    bits_of,
    f32_at,
    f64_at,
    float_of,
    i32_at,
    i64_at,
    sum_of_halves,
    u8_at,
    u16_at,
)

FLOAT32, FLOAT64, BYTE, INT32, INT64, FLOAT16, BFLOAT16 = range(7)
"""Bytes are int8 or uint8, which wrap alike."""

_ONE, _HALF, _SHIFT, _NAN = np.uint32(1), np.uint32(0x7FFF), np.uint32(16), np.uint32(0x7FC0)


@lean_nested
def _add_f32(to: int, source: int, elems: int) -> None:
    total, values = f32_at(to, elems), f32_at(source, elems)
    for i in range(elems):
        total[i] += values[i]


@lean_nested
def _add_f64(to: int, source: int, elems: int) -> None:
    total, values = f64_at(to, elems), f64_at(source, elems)
    for i in range(elems):
        total[i] += values[i]


@lean_nested
def _add_bytes(to: int, source: int, elems: int) -> None:
    total, values = u8_at(to, elems), u8_at(source, elems)
    for i in range(elems):
        total[i] += values[i]


@lean_nested
def _add_i32(to: int, source: int, elems: int) -> None:
    total, values = i32_at(to, elems), i32_at(source, elems)
    for i in range(elems):
        total[i] += values[i]


@lean_nested
def _add_i64(to: int, source: int, elems: int) -> None:
    total, values = i64_at(to, elems), i64_at(source, elems)
    for i in range(elems):
        total[i] += values[i]


@lean_nested
def _add_f16(to: int, source: int, elems: int) -> None:
    total, values = u16_at(to, elems), u16_at(source, elems)
    for i in range(elems):
        total[i] = sum_of_halves(total[i], values[i])


@lean_nested
def _add_bf16(to: int, source: int, elems: int) -> None:
    total, values = u16_at(to, elems), u16_at(source, elems)
    for i in range(elems):
        a = float_of(np.uint32(total[i]) << _SHIFT)
        b = float_of(np.uint32(values[i]) << _SHIFT)
        wide = a + b
        bits = bits_of(wide)
        rounded = (bits + _HALF + ((bits >> _SHIFT) & _ONE)) >> _SHIFT
        total[i] = np.uint16(_NAN if wide != wide else rounded)


@lean_nested
def add(dtype: int, to: int, source: int, count: int) -> None:
    """Add values to others in place; integers wrap.

    Args:
        dtype: One of the numbers above.
        to: Where the total is.
        source: What is added.
        count: Bytes of each.
    """
    if dtype == FLOAT32:
        _add_f32(to, source, count >> 2)
    elif dtype == FLOAT64:
        _add_f64(to, source, count >> 3)
    elif dtype == BYTE:
        _add_bytes(to, source, count)
    elif dtype == INT32:
        _add_i32(to, source, count >> 2)
    elif dtype == INT64:
        _add_i64(to, source, count >> 3)
    elif dtype == FLOAT16:
        _add_f16(to, source, count >> 1)
    else:
        _add_bf16(to, source, count >> 1)


@lean_nested
def divide(dtype: int, at: int, count: int, divisor: int) -> None:
    """Divide values in place; of FLOAT32 or FLOAT64.

    Args:
        dtype: Theirs.
        at: Where they are.
        count: Bytes.
        divisor: By what.
    """
    if dtype == FLOAT32:
        singles, by = f32_at(at, count >> 2), np.float32(divisor)
        for i in range(singles.size):
            singles[i] /= by
    else:
        doubles, exactly = f64_at(at, count >> 3), np.float64(divisor)
        for i in range(doubles.size):
            doubles[i] /= exactly
