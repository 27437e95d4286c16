"""Eight bytes at a time from and to byte arrays, at any address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from ._jit import intrinsic

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), _WORD.as_pointer())


@intrinsic
def load_word(typing: Any, array: Any, at: Any) -> Any:
    """Bytes ``at`` to ``at + 7`` of a uint8 array as a uint64, least significant first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_address(context, builder, signature, arguments), align=1)

    return types.uint64(array, types.intp), generate


@intrinsic
def store_word(typing: Any, array: Any, at: Any, word: Any) -> Any:
    """Write a uint64 to bytes ``at`` to ``at + 7`` of a uint8 array, least significant first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """How many bits of a uint64 lie below its lowest set bit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def ones(typing: Any, word: Any) -> Any:
    """How many bits of a uint64 are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate
