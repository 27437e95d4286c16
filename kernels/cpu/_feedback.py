"""What goes in: p = x + scale * residual, one element at a time, with or without a residual.

Numba compiles a caller once for arrays and once for None; the branch on None is gone before LLVM
sees the loop, so both vectorise. ``x`` is float32, or the bits of 16-bit floats (`_values.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import overload

from .._arrays import F32
from ._intrinsic import intrinsic
from ._jit import lean
from ._values import load
from ._vector import LANES, Memory, Vector, for_rows, lanes_of, memory, spread

Values = npt.NDArray[Any]

_LEAN: Any = {"_nrt": False}
_WORD = ir.IntType(32)


@lean
def effective(x: Values, residual: F32 | None, scale: np.float32, i: int) -> np.float32:
    """Element i of p; the product is rounded before the sum."""
    if residual is None:
        return np.float32(load(x, i))
    return np.float32(load(x, i) + scale * residual[i])


@lean
def _fill(x: Values, residual: F32 | None, scale: np.float32, p: F32) -> None:
    for i in range(x.size):
        p[i] = effective(x, residual, scale, i)


@intrinsic
def _fill_largest(typing: Any, x: Any, residual: Any, scale: Any, p: Any) -> Any:
    """Write p, unless it is None, and return the bits of its largest magnitude."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = Memory(context, builder, x, arguments[0])
        kept = memory(context, builder, residual, arguments[1])
        target = memory(context, builder, p, arguments[3])
        room = {
            lanes: cgutils.alloca_once_value(builder, ir.Constant(lanes_of(_WORD, lanes), None))
            for lanes in (LANES, 1)
        }

        def row(at: Any, lanes: int) -> None:
            value = source.read(at, lanes)
            if kept is not None:
                value = value + spread(builder, arguments[2], lanes) * kept.read(at, lanes)
            if target is not None:
                target.write(at, value)
            before = Vector(builder, builder.load(room[lanes]))
            builder.store(before.at_least(value.words() & 0x7FFFFFFF).value, room[lanes])

        for_rows(builder, source.size, row)
        rows, rest = (Vector(builder, builder.load(room[lanes])) for lanes in (LANES, 1))
        return rows.largest().at_least(rest).value

    return types.uint32(x, residual, scale, p), generate


@intrinsic
def place(typing: Any, x: Any, residual: Any, room: Any) -> Any:
    """Where a block's p lies: in ``x`` where that is float32 and has no residual, else in ``room``.

    Returns the array as it is; `fill` or `fill_largest` comes next.
    """
    source = 0 if _is_plain(x, residual) else 2
    return (x, residual, room)[source](x, residual, room), lambda c, b, s, given: given[source]


def fill(x: Values, residual: F32 | None, scale: np.float32, p: F32) -> None:
    """Write all of p, unless it is x itself."""
    raise NotImplementedError("only compiled code calls this")


def fill_largest(x: Values, residual: F32 | None, scale: np.float32, p: F32) -> np.float32:
    """The same, and return the largest magnitude: a NaN above an infinity above the rest."""
    raise NotImplementedError("only compiled code calls this")


@overload(fill, jit_options=_LEAN)
def _implement_fill(x: Any, residual: Any, scale: Any, p: Any) -> Any:
    def nothing(x: Any, residual: Any, scale: Any, p: Any) -> Any:
        pass

    def write(x: Any, residual: Any, scale: Any, p: Any) -> Any:
        _fill(x, residual, scale, p)

    return nothing if _is_plain(x, residual) else write


@overload(fill_largest, jit_options=_LEAN)
def _implement_fill_largest(x: Any, residual: Any, scale: Any, p: Any) -> Any:
    def look(x: Any, residual: Any, scale: Any, p: Any) -> Any:
        return np.float32(np.uint32(_fill_largest(x, residual, scale, None)).view(np.float32))

    def write(x: Any, residual: Any, scale: Any, p: Any) -> Any:
        return np.float32(np.uint32(_fill_largest(x, residual, scale, p)).view(np.float32))

    return look if _is_plain(x, residual) else write


def _is_plain(x: Any, residual: Any) -> bool:
    return isinstance(residual, types.NoneType) and x.dtype == types.float32


@lean
def magnitude_bits(value: np.float32) -> np.uint32:
    """The bits of |value|: they order as the magnitudes do, with Inf and then NaN on top."""
    bits = np.float32(value).view(np.uint32)
    return np.uint32(bits & np.uint32(0x7FFFFFFF))


def inverse(scale: float) -> np.float32:
    """1 / scale, as the reference rounds it."""
    return np.float32(1) / np.float32(scale)
