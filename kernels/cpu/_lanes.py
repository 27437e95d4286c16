"""Sums of a float32 block in the one written order, with the 16 lanes kept in vector registers.

The order is that of :mod:`compressa.kernels.reference._tree`: 16 strided lanes in float64, then
halving. Written as vector instructions, since a loop over an array of lanes goes through memory:
this is four times as fast, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ._intrinsic import intrinsic

_LANES = 16
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), _LANES)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)

Term = Callable[[Any, Any, Any], Any]


def _add_squares(builder: Any, total: Any, values: Any) -> Any:
    """The square of a float32 is exact in float64, so a fused sum has the same bits."""
    wide = builder.fpext(values, _DOUBLES)
    kind = ir.FunctionType(_DOUBLES, [_DOUBLES] * 3)
    name = f"llvm.fmuladd.v{_LANES}f64"
    fused = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(fused, [wide, wide, total])


def _add_magnitudes(builder: Any, total: Any, values: Any) -> Any:
    mask = ir.Constant(_WORDS, [0x7FFFFFFF] * _LANES)
    bits = builder.and_(builder.bitcast(values, _WORDS), mask)
    return builder.fadd(total, builder.fpext(builder.bitcast(bits, _FLOATS), _DOUBLES))


def _add(builder: Any, total: Any, address: Any, term: Term) -> None:
    values = builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4)
    builder.store(term(builder, builder.load(total), values), total)


def _padded(builder: Any, data: Any, first: Any, count: Any) -> Any:
    """The last elements, with zeros where there are none: they change no bits of a sum."""
    room = cgutils.alloca_once(builder, _FLOATS)
    builder.store(ir.Constant(_FLOATS, [0.0] * _LANES), room)
    places = builder.bitcast(room, ir.FloatType().as_pointer())
    with cgutils.for_range(builder, count) as loop:
        value = builder.load(builder.gep(data, [builder.add(first, loop.index)]))
        builder.store(value, builder.gep(places, [loop.index]))
    return places


def _halved(builder: Any, lanes: Any) -> Any:
    """Lane j takes in lane j + half, for half = 8, 4, 2, 1."""
    half = _LANES // 2
    while half:
        word = ir.IntType(32)
        low = ir.Constant(ir.VectorType(word, half), list(range(half)))
        high = ir.Constant(ir.VectorType(word, half), list(range(half, 2 * half)))
        parts = [builder.shuffle_vector(lanes, lanes, places) for places in (low, high)]
        lanes = builder.fadd(parts[0], parts[1])
        half //= 2
    return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))


def _summing(term: Term) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        (size,) = cgutils.unpack_tuple(builder, array.shape, 1)
        lanes = size.type(_LANES)
        total = cgutils.alloca_once(builder, _DOUBLES)
        builder.store(ir.Constant(_DOUBLES, [0.0] * _LANES), total)
        rows, rest = builder.udiv(size, lanes), builder.urem(size, lanes)
        with cgutils.for_range(builder, rows) as loop:
            address = builder.gep(array.data, [builder.mul(loop.index, lanes)])
            _add(builder, total, address, term)
        tail = _padded(builder, array.data, builder.mul(rows, lanes), rest)
        _add(builder, total, tail, term)
        return _halved(builder, builder.load(total))

    return generate


@intrinsic
def sum_squares(typing: Any, values: Any) -> Any:
    """Sum of the squares of a contiguous float32 array, in float64."""
    return types.float64(values), _summing(_add_squares)


@intrinsic
def sum_magnitudes(typing: Any, values: Any) -> Any:
    """Sum of the magnitudes of a contiguous float32 array, in float64."""
    return types.float64(values), _summing(_add_magnitudes)


@intrinsic
def sum_reaching(typing: Any, values: Any, least: Any) -> Any:
    """Sum of the magnitudes whose bits are at least ``least``, in float64; and how many."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        undefined = ir.Constant(_WORDS, ir.Undefined)
        one = builder.insert_element(undefined, arguments[1], ir.IntType(32)(0))
        bound = builder.shuffle_vector(one, undefined, ir.Constant(_WORDS, [0] * _LANES))
        count = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(64), 0))

        def reaching(builder: Any, total: Any, values: Any) -> Any:
            mask = ir.Constant(_WORDS, [0x7FFFFFFF] * _LANES)
            bits = builder.and_(builder.bitcast(values, _WORDS), mask)
            reaches = builder.icmp_unsigned(">=", bits, bound)
            few = builder.ctpop(builder.bitcast(reaches, ir.IntType(_LANES)))
            wide = builder.zext(few, ir.IntType(64))
            builder.store(builder.add(builder.load(count), wide), count)
            kept = builder.select(reaches, bits, ir.Constant(_WORDS, [0] * _LANES))
            return builder.fadd(total, builder.fpext(builder.bitcast(kept, _FLOATS), _DOUBLES))

        total = _summing(reaching)(context, builder, signature, arguments)
        return context.make_tuple(builder, signature.return_type, [total, builder.load(count)])

    return types.Tuple((types.float64, types.int64))(values, types.uint32), generate
