"""Gradients of 16 bits, read as float32.

Numba knows no 16-bit floats, so a kernel sees their bits: int16 stands for IEEE half precision
and uint16 for bfloat16. `load` widens an element where it is used, without a pass of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_WORD = ir.IntType(32)


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
