"""Linear codes of a block, to nearest or stochastic: the loop in which `blockwise` spends its time.

Codes, what they leave behind and the hints to memory are made in one go, so that neither a code
nor a random number passes through memory once more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from .._arrays import F32, U8, U32
from ..philox import FRACTION_BITS
from ._grid import Shape
from ._jit import inlined, intrinsic
from ._prefetch import FAR
from ._values import Values
from ._vector import Hints, Vector, for_rows, memory, spread

# Adding 1.5 * 2**23 leaves no bits for a fraction, so the sum is rounded half to even, and its last
# bits are the integer in two's complement. Unlike rint, this is a plain addition.
ROUNDER = np.float32(12582912.0)
STEPS = np.float32(2**FRACTION_BITS)  # 255 times that, and noise, is below 2**31
_ONE = np.float32(1)


class Grid(NamedTuple):
    """What turns values into codes and back: numbers, or vectors of them.

    Attributes:
        factor: From a value to multiples of the scale; to 2**-23 of it with noise.
        scale: Of the block.
        offset: The value of the integer 0; None for 0.
        back: One over the loss scale.
        rounder: Without noise: added to a float to have it rounded.
        bottom: With noise: the smallest multiple of ``factor`` allowed.
        top: The largest.
        zero: The code of the integer 0.
    """

    factor: Any
    scale: Any
    offset: Any
    back: Any
    rounder: Any
    bottom: Any
    top: Any
    zero: Any


@inlined
def grid_numbers(
    scale: np.float32, offset: np.float32 | None, back: np.float32, shape: Shape, noise: U32 | None
) -> Grid:
    """The grid of a block whose scale is no subnormal."""
    factor = np.float32(_ONE / scale)
    if noise is not None:
        factor = np.float32(factor * STEPS)  # a power of two: rounds as if it came afterwards
    rounder = np.float32(ROUNDER + np.float32(shape.zero))  # zero is even: ties stay ties
    bottom, top = np.float32(shape.bottom) * STEPS, np.float32(shape.top) * STEPS
    return Grid(factor, scale, offset, back, rounder, bottom, top, np.int32(shape.zero))


def _rounded(p: Vector, noise: Vector | None, grid: Grid) -> tuple[Vector, Vector]:
    """The code, in the lowest bits of a word, and the integer that it stands for, as a float."""
    t = (p if grid.offset is None else p - grid.offset) * grid.factor
    if noise is None:
        rounded = t + grid.rounder
        return rounded.words(), rounded - grid.rounder
    fixed = t.at_least(grid.bottom).at_most(grid.top).truncated()
    whole = (fixed + noise) >> FRACTION_BITS
    return whole + grid.zero, whole.floats()


def _left(p: Vector, integer: Vector, grid: Grid) -> Vector:
    decoded = integer * grid.scale
    kept: Vector = (p - (decoded if grid.offset is None else decoded + grid.offset)) * grid.back
    return kept


def _joined(planes: list[Any], bits: int) -> Any:
    """A byte, in the lowest bits of a word, from one code of each plane."""
    joined = planes[-1]  # its bits above are cut off
    for plane in reversed(planes[:-1]):
        joined = (joined << bits) | (plane & (2**bits - 1))
    return joined


def _grid_of(builder: Any, kind: Any, grid: Any, lanes: int) -> Grid:
    """The numbers of a grid, in every lane."""
    return Grid(
        *(
            None
            if isinstance(field, types.NoneType)
            else spread(builder, builder.extract_value(grid, i), lanes)
            for i, field in enumerate(kind.types)
        )
    )


def _generate(bits: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write the loop, for the arguments of `encode` behind the bits."""
    given = zip(signature.args[:6], arguments[:6], strict=True)
    streams: list[Any] = [memory(context, builder, *stream) for stream in given]
    p, codes, noise, residual, x, left = streams

    def encode(at: Any, numbers: Grid, lanes: int) -> Vector:
        values = p.read(at, lanes)
        drawn = None if noise is None else noise.read(at, lanes)
        code, integer = _rounded(values, drawn, numbers)
        if residual is not None:
            residual.write(at, _left(values, integer, numbers))
        return code

    def row(at: Any, lanes: int) -> None:
        numbers, size = _grid_of(builder, signature.args[7], arguments[7], lanes), codes.size
        planes = [builder.mul(size, size.type(plane)) for plane in range(8 // bits)]
        words = [encode(builder.add(at, plane), numbers, lanes) for plane in planes]
        codes.write(at, _joined(words, bits))

    each = {"rows": 2} if bits == 8 else {"lines": 4 // bits}
    for_rows(builder, codes.size, row, Hints(builder, (x, left), arguments[6], **each, far=FAR))
    return context.get_dummy_value()


def _encoder(bits: int) -> Callable[..., Any]:
    def declare(
        typing: Any,
        p: Any,
        codes: Any,
        noise: Any,
        residual: Any,
        x: Any,
        left: Any,
        position: Any,
        grid: Any,
    ) -> Any:
        signature = types.void(p, codes, noise, residual, x, left, position, grid)
        return signature, partial(_generate, bits)

    return intrinsic(declare)


_encode_8, _encode_4, _encode_2 = _encoder(8), _encoder(4), _encoder(2)


@inlined
def encode(
    bits: int,
    p: F32,
    codes: U8,
    noise: U32 | None,
    residual: F32 | None,
    x: Values,
    left: F32 | None,
    position: int,
    grid: Grid,
) -> None:
    """Codes in planes, of exactly as many values as they hold, and the new residual.

    Asks memory for half as many elements of ``x`` and of ``left``, from ``position``.
    """
    if bits == 8:
        _encode_8(p, codes, noise, residual, x, left, position, grid)
    elif bits == 4:
        _encode_4(p, codes, noise, residual, x, left, position, grid)
    else:
        _encode_2(p, codes, noise, residual, x, left, position, grid)
