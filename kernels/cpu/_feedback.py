"""What goes in: p = x + loss_scale * residual, one element at a time, with or without a residual.

Numba compiles a caller once for arrays and once for None; the branch on None is gone before LLVM
sees the loop, so both vectorise. ``x`` is float32, or the bits of 16-bit floats (`_values.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core import types

from .._arrays import F32
from ._jit import inlined, intrinsic, lean_nested
from ._lanes import Largest, LargestAndSquares, Nothing, Sum, magnitudes, squares
from ._prefetch import FAR
from ._values import load
from ._vector import Memory, for_rows, hints_of, memory, spread

Values = npt.NDArray[Any]

Factors = tuple[np.float32, np.float32]
"""The loss scale, and one over it."""


@lean_nested
def effective(x: Values, residual: F32 | None, loss_scale: np.float32, i: int) -> np.float32:
    """Element i of p; the product is rounded before the sum."""
    if residual is None:
        return np.float32(load(x, i))
    return np.float32(load(x, i) + loss_scale * residual[i])


@intrinsic
def room_for_p(typing: Any, x: Any, residual: Any, room: Any) -> Any:
    """Where a block's p lies: in ``x`` where that is float32 and has no residual, else in ``room``.

    Returns the array as it is; `fill` or `fill_largest` comes next.
    """
    source = 0 if _is_plain(x, residual) else 2
    return (x, residual, room)[source](x, residual, room), lambda c, b, s, given: given[source]


def _statistic(result: Any, start: Callable[[Any], Any], **each: int) -> Any:
    """A first pass: writes all of p, unless it is x itself, and returns what it found.

    With what `Hints` asks for in an iteration it is given two streams and a position more, to ask
    memory for.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, residual, _, p = signature.args[:4]
        source = Memory(context, builder, x, arguments[0])
        kept = memory(context, builder, residual, arguments[1])
        target = None if _is_plain(x, residual) else Memory(context, builder, p, arguments[3])
        statistic = start(builder)

        def row(at: Any, lanes: int) -> None:
            value = source.read(at, lanes)
            if kept is not None:
                value = value + spread(builder, arguments[2], lanes) * kept.read(at, lanes)
            if target is not None:
                target.write(at, value)
            statistic.add(value, at)

        ahead = hints_of(context, builder, signature, arguments, **each) if each else None
        for_rows(builder, source.size, row, ahead)
        return statistic.result()

    def declare(typing: Any, x: Any, residual: Any, loss_scale: Any, p: Any) -> Any:
        return result(x, residual, loss_scale, p), generate

    def declare_hints(
        typing: Any,
        x: Any,
        residual: Any,
        loss_scale: Any,
        p: Any,
        now: Any,
        left: Any,
        position: Any,
    ) -> Any:
        return result(x, residual, loss_scale, p, now, left, position), generate

    return intrinsic(declare_hints if each else declare)


fill = _statistic(types.void, Nothing)
"""Write p. Its sisters also ask memory for a quarter of what they read, or for half of it."""

fill_magnitudes = _statistic(types.float64, lambda builder: Sum(builder, magnitudes), rows=4)
_fill_largest = _statistic(types.uint32, Largest, rows=2, far=FAR)
fill_largest_and_squares = _statistic(
    types.Tuple((types.uint32, types.float64)), LargestAndSquares, rows=2, far=FAR
)
fill_squares = _statistic(types.float64, lambda builder: Sum(builder, squares), rows=2, far=FAR)


@inlined
def fill_largest(
    x: Values,
    residual: F32 | None,
    loss_scale: np.float32,
    p: F32,
    now: Values | None,
    left: F32 | None,
    position: int,
) -> np.float32:
    """The largest magnitude of p: a NaN above an infinity above the rest.

    Like its sisters, which return sums in float64 (and one of them the bits of the largest
    magnitude as well), it writes p, unless that is x itself.
    """
    bits = _fill_largest(x, residual, loss_scale, p, now, left, position)
    return np.float32(np.uint32(bits).view(np.float32))


@lean_nested
def combine(out: F32, decoded: F32, weight: np.float32, add: bool) -> None:
    """What comes out: weight * decoded, or that added to what is there, the product rounded."""
    if add:
        for i in range(out.size):
            out[i] += weight * decoded[i]
    else:
        for i in range(out.size):
            out[i] = weight * decoded[i]


def _is_plain(x: Any, residual: Any) -> bool:
    return isinstance(residual, types.NoneType) and x.dtype == types.float32


@lean_nested
def magnitude_bits(value: np.float32) -> np.uint32:
    """The bits of |value|: they order as the magnitudes do, with Inf and then NaN on top."""
    bits = np.float32(value).view(np.uint32)
    return np.uint32(bits & np.uint32(0x7FFFFFFF))


@lru_cache
def factors_of(loss_scale: float) -> Factors:
    """A loss scale stays the same for many calls, and short ones feel two numbers of NumPy's.

    Returns:
        The loss_scale, and 1 / loss_scale as the reference rounds it.
    """
    factor = np.float32(loss_scale)
    return factor, np.float32(1) / factor
