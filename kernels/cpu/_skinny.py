"""A wide matrix times a few vectors, four rows at a time, in vector registers.

    M = x + loss_scale * residual

takes the place of x in the pass that multiplies it first; memory has time to write while it reads.
Four vectors of a factor take part at a time, or fewer, so that sums stay in registers while a line
of the factor is loaded once for four lines of M. The arithmetic is elementwise or in 16 strided
lanes, each product and each sum rounded on its own, so that bits do not depend on how many rows or
vectors go together.

Rows of a matrix often begin at the same offset in a page, and the hardware's prefetcher does not
follow so many of them. Hints for the columns to come, and at the end of a row for the next four
rows, take its place.

The numbers of rows and of vectors are constants where these are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ..lowrank import BLOCK
from ._jit import intrinsic
from ._vector import LANES, Memory, Vector, for_rows, lanes_of, spread

ROWS = 4
_AHEAD = 256  # columns

_FLOAT = ir.FloatType()
_FLOATS = lanes_of(_FLOAT, LANES)
_ZEROS = ir.Constant(_FLOATS, [0.0] * LANES)
_INDEX = ir.IntType(64)

Rows = list[Memory]
"""Neighbouring rows of a matrix."""


def _elements(builder: Any, rows: Rows, first: Any, columns: int) -> list[list[Any]]:
    """So many elements of each row."""
    indices = [builder.add(first, _INDEX(i)) for i in range(columns)]
    return [[row.read(index, 1).value for index in indices] for row in rows]


def _products(
    builder: Any, factors: list[list[Any]], q: Rows, column: Any, lanes: int
) -> list[Vector]:
    """A column, or sixteen, of the rows that vectors make, each times an element of its own."""
    lines, found = [line.read(column, lanes) for line in q], []
    for own in zip(*factors, strict=True):
        spreads = [spread(builder, factor, lanes) for factor in own]
        terms = [factor * line for factor, line in zip(spreads, lines, strict=True)]
        found.append(reduce(add, terms))
    return found


def _padded(builder: Any, row: Memory, column: Any, count: Any) -> Vector:
    """Sixteen elements, of which only so many are read; the others are zeros."""
    room = cgutils.alloca_once(builder, _FLOATS)
    builder.store(_ZEROS, room)
    elements = builder.bitcast(room, _FLOAT.as_pointer())
    with cgutils.for_range(builder, count) as loop:
        value = row.read(builder.add(column, loop.index), 1).value
        builder.store(value, builder.gep(elements, [loop.index]))
    return Vector(builder, builder.load(room))


def _ask(builder: Any, rows: Rows, column: Any) -> None:
    """Ask memory for what comes after a column, in these rows or in the next ones."""
    columns = rows[0].size
    ahead = builder.add(column, _INDEX(_AHEAD))
    beyond = builder.add(ahead, builder.mul(columns, _INDEX(len(rows) - 1)))
    hinted = builder.select(builder.icmp_signed("<", ahead, columns), ahead, beyond)
    for row in rows:
        row.hint(hinted)


class _Sum:
    """Rows of M: those of a gradient, and of a residual times the loss scale, added up.

    Whatever is read of M is M in memory from then on.
    """

    def __init__(self, builder: Any, x: Rows, residual: Rows, loss_scale: Any) -> None:
        self._builder, self._loss_scale = builder, loss_scale
        self._x, self._residual = x, residual
        self.columns = x[0].size

    def read(self, column: Any, lanes: int) -> list[Vector]:
        """A column of all rows, or sixteen columns."""
        values = [row.read(column, lanes) for row in self._x]
        if self._residual:
            factor = spread(self._builder, self._loss_scale, lanes)
            kept = [row.read(column, lanes) for row in self._residual]
            values = [value + factor * left for value, left in zip(values, kept, strict=True)]
            for row, value in zip(self._x, values, strict=True):
                row.write(column, value)
        return values

    def read_last(self, column: Any, count: Any) -> list[Vector]:
        """The last so many columns, and zeros."""
        with cgutils.for_range(self._builder, count) as loop:
            self.read(self._builder.add(column, loop.index), 1)
        return [_padded(self._builder, row, column, count) for row in self._x]

    def ask(self, column: Any) -> None:
        """Ask memory for what comes after a column."""
        for rows in (self._x, self._residual):
            if rows:
                _ask(self._builder, rows, column)


@contextmanager
def _blocks(builder: Any, columns: Any) -> Iterator[tuple[Any, Any]]:
    """Where each block of columns begins, and how many it has."""
    count = builder.udiv(builder.add(columns, _INDEX(BLOCK - 1)), _INDEX(BLOCK))
    with cgutils.for_range(builder, count) as loop:
        begin = builder.mul(loop.index, _INDEX(BLOCK))
        left = builder.sub(columns, begin)
        whole = builder.icmp_unsigned(">", left, _INDEX(BLOCK))
        yield begin, builder.select(whole, _INDEX(BLOCK), left)


class _Lanes:
    """Sums of products of so many rows of M and so many vectors."""

    def __init__(self, builder: Any, rows: int, vectors: int) -> None:
        self._builder, self._rows = builder, rows
        pairs = range(rows * vectors)
        self._lanes = [cgutils.alloca_once(builder, _FLOATS) for _ in pairs]
        self._totals = [cgutils.alloca_once(builder, _FLOAT) for _ in pairs]
        for total in self._totals:
            builder.store(_FLOAT(0.0), total)

    def begin(self) -> None:
        """Begin a block."""
        for lanes in self._lanes:
            self._builder.store(_ZEROS, lanes)

    def take(self, elements: list[Vector], vectors: Iterator[Vector]) -> None:
        """Add sixteen columns' products."""
        sums = iter(self._lanes)
        for vector in vectors:
            for element in elements:
                lanes = next(sums)
                total = Vector(self._builder, self._builder.load(lanes)) + vector * element
                self._builder.store(total.value, lanes)

    def end(self) -> None:
        """Add a block's sums to the totals."""
        builder = self._builder
        for lanes, total in zip(self._lanes, self._totals, strict=True):
            block = Vector(builder, builder.load(lanes)).folded(add)
            builder.store(builder.fadd(builder.load(total), block.value), total)

    def write(self, p: Rows, first: Any) -> None:
        """Write the totals of row i to column ``first + i``."""
        for number, total in enumerate(self._totals):
            column = self._builder.add(first, _INDEX(number % self._rows))
            p[number // self._rows].write(column, Vector(self._builder, self._builder.load(total)))


class _Call:
    """What an intrinsic was called with: how many rows and vectors, and its arguments' rows."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self._builder = context, builder
        self._kinds, self._arguments = signature.args, arguments
        self.rows, self.vectors = (kind.literal_value for kind in signature.args[:2])

    def part(self, number: int, first: Any, count: int) -> Rows:
        """So many rows of an argument, from one on; none of None."""
        kind = self._kinds[number]
        if isinstance(kind, types.NoneType):
            return []
        matrix = Memory(self._context, self._builder, kind, self._arguments[number])
        return [matrix.row(self._builder.add(first, _INDEX(i))) for i in range(count)]

    def sum(self, first: Any) -> _Sum:
        """Rows of M, of which x, residual and loss scale are the arguments 2 to 4."""
        x, residual = self.part(2, first, self.rows), self.part(3, first, self.rows)
        return _Sum(self._builder, x, residual, self._arguments[4])


def _is_constant(*kinds: Any) -> bool:
    return all(isinstance(kind, types.IntegerLiteral) for kind in kinds)


@intrinsic
def multiply_rows(
    typing: Any,
    rows: Any,
    vectors: Any,
    x: Any,
    residual: Any,
    loss_scale: Any,
    q: Any,
    p: Any,
    i: Any,
    k: Any,
) -> Any:
    """x[i'] = M[i'] and p[k', i'] = <q[k'], M[i']> for rows i' and vectors k' from i and k on."""
    if not _is_constant(rows, vectors):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call, (i, k) = _Call(context, builder, signature, arguments), arguments[7:]
        m, q = call.sum(i), call.part(5, k, call.vectors)
        sums = _Lanes(builder, call.rows, call.vectors)
        with _blocks(builder, m.columns) as (begin, size):
            sums.begin()
            groups, rest = builder.udiv(size, _INDEX(LANES)), builder.urem(size, _INDEX(LANES))
            with cgutils.for_range(builder, groups) as loop:
                column = builder.add(begin, builder.mul(loop.index, _INDEX(LANES)))
                m.ask(column)
                sums.take(m.read(column, LANES), (row.read(column, LANES) for row in q))
            with builder.if_then(builder.icmp_unsigned("!=", rest, _INDEX(0))):
                last = builder.add(begin, builder.sub(size, rest))
                padded = (_padded(builder, row, last, rest) for row in q)
                sums.take(m.read_last(last, rest), padded)
            sums.end()
        sums.write(call.part(6, k, call.vectors), i)
        return context.get_dummy_value()

    index = types.intp
    return types.void(rows, vectors, x, residual, loss_scale, q, p, index, index), generate


@intrinsic
def add_products(
    typing: Any,
    rows: Any,
    vectors: Any,
    x: Any,
    residual: Any,
    loss_scale: Any,
    p: Any,
    out: Any,
    i: Any,
    k: Any,
) -> Any:
    """x[i'] = M[i'] and out[k'] += p[k', i'] M[i'], for so many rows i' from i on in order."""
    if not _is_constant(rows, vectors):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call, (i, k) = _Call(context, builder, signature, arguments), arguments[7:]
        m, out = call.sum(i), call.part(6, k, call.vectors)
        factors = _elements(builder, call.part(5, k, call.vectors), i, call.rows)

        def row(column: Any, lanes: int) -> None:
            if lanes > 1:
                m.ask(column)
            elements = m.read(column, lanes)
            for line, own in zip(out, factors, strict=True):
                total = line.read(column, lanes)
                for factor, element in zip(own, elements, strict=True):
                    total = total + spread(builder, factor, lanes) * element
                line.write(column, total)

        for_rows(builder, m.columns, row)
        return context.get_dummy_value()

    index = types.intp
    return types.void(rows, vectors, x, residual, loss_scale, p, out, index, index), generate


@intrinsic
def split_rows(
    typing: Any,
    rows: Any,
    vectors: Any,
    x: Any,
    residual: Any,
    back: Any,
    p: Any,
    q: Any,
    out_p: Any,
    out_q: Any,
    i: Any,
) -> Any:
    """Residual = (x - p^T q) * back and x = out_p^T out_q, for so many rows from i on."""
    if not _is_constant(rows, vectors):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call, i, first = _Call(context, builder, signature, arguments), arguments[9], _INDEX(0)
        x, residual = call.part(2, i, call.rows), call.part(3, i, call.rows)
        (p, q), (out_p, out_q) = (
            (
                _elements(builder, call.part(number, first, call.vectors), i, call.rows),
                call.part(number + 1, first, call.vectors),
            )
            for number in (5, 7)
        )

        def row(column: Any, lanes: int) -> None:
            if lanes > 1:
                _ask(builder, x, column)
                _ask(builder, residual, column)
            given = zip(x, _products(builder, p, q, column, lanes), strict=True)
            factor = spread(builder, arguments[4], lanes)
            missed = [(line.read(column, lanes) - value) * factor for line, value in given]
            values = [*missed, *_products(builder, out_p, out_q, column, lanes)]
            for line, value in zip([*residual, *x], values, strict=True):
                line.write(column, value)

        for_rows(builder, x[0].size, row)
        return context.get_dummy_value()

    return types.void(rows, vectors, x, residual, back, p, q, out_p, out_q, types.intp), generate
