"""Memory by its address: what compiled code keeps between two calls, and what it lends the kernel.

All state is 64-bit words, so that Python can lay it out with NumPy and a call takes one argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.np.arrayobj import make_array, populate_array

from compressa.kernels.cpu._jit import intrinsic, lean_nested

_WORD = ir.IntType(64)

number = cast(Callable[[Callable[..., Any]], Callable[..., int]], intrinsic)
"""`intrinsic`, of what returns a number."""


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@number
def peek(typing: Any, address: Any, word: Any) -> Any:
    """Return a word as int64: the one that lies so many words behind an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], _WORD)
        return builder.load(builder.gep(pointer, [arguments[1]]), align=1)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def poke(typing: Any, address: Any, word: Any, value: Any) -> Any:
    """Write a word: see `peek`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], _WORD)
        builder.store(arguments[2], builder.gep(pointer, [arguments[1]]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@number
def peek_int32(typing: Any, address: Any) -> Any:
    """Return the 32-bit integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], ir.IntType(32))
        return builder.load(pointer, align=1)

    return types.int32(types.int64), generate


@number
def swap_if(typing: Any, address: Any, word: Any, old: Any, new: Any) -> Any:
    """Change a word if it is the old one; return whether it was. No thread comes between."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(_pointer(builder, arguments[0], _WORD), [arguments[1]])
        result = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def copy_bytes(typing: Any, to: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one address to another; they do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        to, source = (_pointer(builder, address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def sum_of_halves(typing: Any, a: Any, b: Any) -> Any:
    """Return the sum of two float16, by their bits, rounded once from float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half, single = ir.HalfType(), ir.FloatType()
        wide = [builder.fpext(builder.bitcast(x, half), single) for x in arguments]
        return builder.bitcast(builder.fptrunc(builder.fadd(*wide), half), ir.IntType(16))

    return types.uint16(types.uint16, types.uint16), generate


@intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """Return the float32 of 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of(typing: Any, value: Any) -> Any:
    """Return the 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@lean_nested
def smaller(a: int, b: int) -> int:
    """Return the smaller number; numba's own `min` is compiled anew by every process."""
    return a if a < b else b


@lean_nested
def larger(a: int, b: int) -> int:
    """Return the larger number; see `smaller`."""
    return a if a > b else b


def _array(dtype: Any) -> Any:
    kind = types.Array(dtype, 1, "C")

    def declare(typing: Any, address: Any, elems: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = make_array(kind)(context, builder)
            itemsize = ir.Constant(_WORD, dtype.bitwidth // 8)
            populate_array(
                array,
                data=_pointer(builder, arguments[0], context.get_data_type(dtype)),
                shape=[arguments[1]],
                strides=[itemsize],
                itemsize=itemsize,
                meminfo=None,
                parent=None,
            )
            return array._getvalue()

        return kind(types.int64, types.int64), generate

    return intrinsic(declare)


u8_at, f32_at, f64_at = _array(types.uint8), _array(types.float32), _array(types.float64)
u16_at, i32_at, i64_at = _array(types.uint16), _array(types.int32), _array(types.int64)
"""``f32_at(address, elems)``: an array there, which nobody counts references to."""


def address_of(words: Any) -> int:
    """Return where a NumPy array lies."""
    return int(words.ctypes.data)


def words(count: int) -> Any:
    """Return so many words, all zero."""
    return np.zeros(max(1, count), np.int64)
