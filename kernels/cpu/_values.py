"""Floats of 16 bits, read and written as float32.

Numba knows none, so a kernel sees their bits: int16 stands for IEEE half precision and uint16 for
bfloat16. `load` widens an element where it is used, without a pass of its own; `store` rounds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from ._jit import intrinsic

_WORD = ir.IntType(32)
_QUIET = 0x7FC0  # bfloat16's NaN

Values = npt.NDArray[Any]

INFINITY = np.uint32(0x7F800000)
TOO_LARGE = {
    np.dtype(np.float32): INFINITY,
    np.dtype(np.float16): np.uint32(0x477FF000),
    np.dtype(np.uint16): np.uint32(0x7F7F8000),
}
"""The bits of the smallest float32 number that is infinite as such an element."""


def bits_of(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as kernels take it: float16 as int16, all else as it is."""
    return x.view(np.int16) if x.dtype == np.float16 else x


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Element ``index`` of float32, int16 (half) or uint16 (bfloat16), as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.gep(data, [arguments[1]]))
        if array.dtype == types.float32:
            return value
        if array.dtype == types.int16:
            return builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        wide = builder.shl(builder.zext(value, _WORD), ir.Constant(_WORD, 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write a float32 to element ``index``; 16 bits are rounded to nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = arguments[2]
        if array.dtype != types.float32:
            value = (_half if array.dtype == types.int16 else _bfloat16)(builder, value)
        builder.store(value, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


def _half(builder: Any, value: Any) -> Any:
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))


def _bfloat16(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _WORD)
    high = builder.lshr(bits, _WORD(16))
    odd = builder.and_(high, _WORD(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _WORD(0x7FFF))), _WORD(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, _WORD(_QUIET), rounded), ir.IntType(16))
