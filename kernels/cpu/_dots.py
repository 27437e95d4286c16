"""Scalar products of float32 vectors in float64, with the 16 lanes kept in vector registers.

The order is that of :mod:`compressa.kernels._tree`: 16 strided lanes, then halving.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ._intrinsic import intrinsic
from ._vector import LANES, Memory, Vector, for_rows, lanes_of

_DOUBLE = ir.DoubleType()


class _Sum:
    """A sum of products, built up by a loop over rows of 16.

    The product of two float32 is exact in float64, so that a fused sum has the same bits.
    """

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        zeros = ir.Constant(lanes_of(_DOUBLE, LANES), [0.0] * LANES)
        self._room = cgutils.alloca_once_value(builder, zeros)

    def add(self, a: Vector, b: Vector, at: Any) -> None:
        """Take in a row, or a single product: the lane that it would have in a full row."""
        before = self._builder.load(self._room)
        if a.lanes == LANES:
            after = self._fused(a, b, before)
        else:
            lane = self._builder.and_(at, at.type(LANES - 1))
            one = self._fused(a, b, self._builder.extract_element(before, lane))
            after = self._builder.insert_element(before, one, lane)
        self._builder.store(after, self._room)

    def result(self) -> Any:
        """Lane j takes in lane j + half, for half = 8, 4, 2, 1."""
        lanes = Vector(self._builder, self._builder.load(self._room))
        while lanes.lanes > 1:
            low, high = lanes.halves()
            lanes = Vector(self._builder, self._builder.fadd(low.value, high.value))
        return lanes.value

    def _fused(self, a: Vector, b: Vector, total: Any) -> Any:
        kind = lanes_of(_DOUBLE, a.lanes)
        name = "llvm.fmuladd.f64" if a.lanes == 1 else f"llvm.fmuladd.v{LANES}f64"
        function = ir.FunctionType(kind, [kind] * 3)
        fused = cgutils.get_or_insert_function(self._builder.module, function, name)
        wide = [self._builder.fpext(one.value, kind) for one in (a, b)]
        return self._builder.call(fused, [*wide, total])


@intrinsic
def sum_products(typing: Any, a: Any, b: Any) -> Any:
    """<a, b> of two contiguous float32 vectors of one length."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second = (
            Memory(context, builder, kind, array)
            for kind, array in zip(signature.args, arguments, strict=True)
        )
        total = _Sum(builder)
        for_rows(
            builder,
            first.size,
            lambda at, lanes: total.add(first.read(at, lanes), second.read(at, lanes), at),
        )
        return total.result()

    return types.float64(a, b), generate
