"""Sums of float32 in the one written order, with the 16 lanes kept in vector registers.

The order is that of :mod:`compressa.kernels._numpy`: 16 strided lanes in float64, then halving.
Written as vector instructions, since a loop over an array of lanes goes through memory: this is
four times as fast, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ._jit import intrinsic
from ._vector import LANES, Memory, Vector, for_rows, lanes_of, spread

_DOUBLE, _WORD = ir.DoubleType(), ir.IntType(32)

Term = Callable[..., Any]
"""Adds to a total what one vector contributes, or several."""


def products(builder: Any, total: Any, a: Vector, b: Vector) -> Any:
    """The product of two float32 is exact in float64, so that a fused sum has the same bits."""
    kind = lanes_of(_DOUBLE, a.lanes)
    name = "llvm.fmuladd.f64" if a.lanes == 1 else f"llvm.fmuladd.v{a.lanes}f64"
    fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(fused, [*(builder.fpext(one.value, kind) for one in (a, b)), total])


def squares(builder: Any, total: Any, values: Vector) -> Any:
    """Their squares."""
    return products(builder, total, values, values)


def plain(builder: Any, total: Any, values: Vector) -> Any:
    """The values themselves."""
    return builder.fadd(total, builder.fpext(values.value, lanes_of(_DOUBLE, values.lanes)))


def magnitudes(builder: Any, total: Any, values: Vector) -> Any:
    """Their magnitudes."""
    return plain(builder, total, values.magnitude())


class Sum:
    """A sum of terms, built up by a loop over rows."""

    def __init__(self, builder: Any, term: Term) -> None:
        self._builder, self._term = builder, term
        zeros = ir.Constant(lanes_of(_DOUBLE, LANES), [0.0] * LANES)
        self._room = cgutils.alloca_once_value(builder, zeros)

    def add(self, values: Vector, at: Any, *others: Vector) -> None:
        """Take in a row, or a single element: the lane that it would have in a full row."""
        before = self._builder.load(self._room)
        if values.lanes == LANES:
            after = self._term(self._builder, before, values, *others)
        else:
            lane = self._builder.and_(at, at.type(LANES - 1))
            one = self._builder.extract_element(before, lane)
            one = self._term(self._builder, one, values, *others)
            after = self._builder.insert_element(before, one, lane)
        self._builder.store(after, self._room)

    def result(self) -> Any:
        """The sum of all lanes."""
        return Vector(self._builder, self._builder.load(self._room)).folded(add).value


class Nothing:
    """For loops that only write."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def add(self, values: Vector, at: Any) -> None:
        """Forget them."""

    def result(self) -> Any:
        """No value."""
        return ir.Constant(ir.IntType(8).as_pointer(), None)


class Largest:
    """The bits of the largest magnitude, built up likewise; a NaN above an infinity above all."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._rooms = {
            lanes: cgutils.alloca_once_value(builder, ir.Constant(lanes_of(_WORD, lanes), None))
            for lanes in (LANES, 1)
        }

    def add(self, values: Vector, at: Any) -> None:
        """Take in a row, or a single element."""
        room = self._rooms[values.lanes]
        before = Vector(self._builder, self._builder.load(room))
        self._builder.store(before.at_least(values.magnitude().words()).value, room)

    def result(self) -> Any:
        """Of all lanes."""
        row, rest = (Vector(self._builder, self._builder.load(r)) for r in self._rooms.values())
        return row.folded(Vector.at_least).at_least(rest).value


class LargestAndSquares:
    """Both of them, as a pair of values."""

    def __init__(self, builder: Any) -> None:
        self._largest, self._squares = Largest(builder), Sum(builder, squares)
        self._builder = builder

    def add(self, values: Vector, at: Any) -> None:
        """Take in a row, or a single element."""
        self._largest.add(values, at)
        self._squares.add(values, at)

    def result(self) -> Any:
        """The bits of the largest magnitude, and the sum."""
        return cgutils.pack_struct(self._builder, [self._largest.result(), self._squares.result()])


@intrinsic
def sum_squares(typing: Any, values: Any) -> Any:
    """Sum of the squares of a contiguous float32 array, in float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, total = Memory(context, builder, values, arguments[0]), Sum(builder, squares)
        for_rows(builder, given.size, lambda at, lanes: total.add(given.read(at, lanes), at))
        return total.result()

    return types.float64(values), generate


@intrinsic
def sum_products(typing: Any, a: Any, b: Any) -> Any:
    """<a, b> of two contiguous float32 vectors of one length, in float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second = (
            Memory(context, builder, kind, array)
            for kind, array in zip(signature.args, arguments, strict=True)
        )
        total = Sum(builder, products)

        def row(at: Any, lanes: int) -> None:
            total.add(first.read(at, lanes), at, second.read(at, lanes))

        for_rows(builder, first.size, row)
        return total.result()

    return types.float64(a, b), generate


class _Count:
    """How many flags were set."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._room = cgutils.alloca_once_value(builder, ir.IntType(64)(0))

    def add(self, flags: Any) -> None:
        """Take in those of a row, or of a single element."""
        if flags.type != ir.IntType(1):
            flags = self._builder.ctpop(self._builder.bitcast(flags, ir.IntType(LANES)))
        wide = self._builder.zext(flags, ir.IntType(64))
        self._builder.store(self._builder.add(self._builder.load(self._room), wide), self._room)

    def result(self) -> Any:
        """The number."""
        return self._builder.load(self._room)


def _reaching(result: Any, *, with_all: bool) -> Any:
    """Sum of all magnitudes, if asked for; of those whose bits are no fewer; and their number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sizes = Memory(context, builder, signature.args[0], arguments[0])
        total, part, count = Sum(builder, plain), Sum(builder, plain), _Count(builder)

        def row(at: Any, lanes: int) -> None:
            size = sizes.read(at, lanes)
            flags = size.words().reaches(spread(builder, arguments[1], lanes))
            count.add(flags)
            part.add(size.where(flags, 0.0), at)
            if with_all:
                total.add(size, at)

        for_rows(builder, sizes.size, row)
        results = [part.result(), count.result()]
        if with_all:
            results.insert(0, total.result())
        return context.make_tuple(builder, signature.return_type, results)

    def declare(typing: Any, sizes: Any, least: Any) -> Any:
        return result(sizes, types.uint32), generate

    return intrinsic(declare)


sum_reaching = _reaching(types.Tuple((types.float64, types.int64)), with_all=False)
sum_all_and_reaching = _reaching(
    types.Tuple((types.float64, types.float64, types.int64)), with_all=True
)
