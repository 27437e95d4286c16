"""A wide matrix times a few vectors, four rows at a time, in vector registers.

    M = x + loss_scale * residual

takes the place of x in the pass that multiplies it first; memory has time to write while it reads.
Four vectors of a factor take part at a time, or fewer, so that sums stay in registers while a line
of the factor is loaded once for four lines of M. The arithmetic is elementwise or in 16 strided
lanes, each product and each sum rounded on its own, so that bits do not depend on how many rows or
vectors go together.

Rows of a matrix often begin at the same place of a page, and the hardware's prefetcher does not
follow so many of them. Hints for the columns to come, and at the end of a row for the next four
rows, take its place.

The numbers of rows and of vectors are constants where these are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ..lowrank import BLOCK
from ._intrinsic import intrinsic

ROWS = 4
LANES = 16
_AHEAD = 256  # columns

_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_INDEX = ir.IntType(64)
_WORD = ir.IntType(32)
_ZEROS = ir.Constant(_FLOATS, [0.0] * LANES)
_FIRST = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)


def _spread(builder: Any, value: Any, wide: bool = True) -> Any:
    """The value for all lanes, where there are lanes."""
    if not wide:
        return value
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    one = builder.insert_element(undefined, value, _WORD(0))
    return builder.shuffle_vector(one, undefined, _FIRST)


class _Rows:
    """So many rows of a contiguous matrix, from one on.

    Where `wide` is asked for, elements are sixteen in a vector, else single.
    """

    def __init__(
        self, context: Any, builder: Any, kind: Any, matrix: Any, first: Any, rows: int
    ) -> None:
        array = context.make_array(kind)(context, builder, matrix)
        self._builder = builder
        self.columns = cgutils.unpack_tuple(builder, array.shape, 2)[1]
        starts = [builder.mul(builder.add(first, _INDEX(i)), self.columns) for i in range(rows)]
        self._rows = [builder.gep(array.data, [start]) for start in starts]

    def __len__(self) -> int:
        return len(self._rows)

    def address(self, row: int, column: Any, wide: bool = False) -> Any:
        """Where an element lies, or sixteen of them."""
        place = self._builder.gep(self._rows[row], [column])
        return self._builder.bitcast(place, _FLOATS.as_pointer()) if wide else place

    def load(self, row: int, column: Any, wide: bool) -> Any:
        """Read."""
        return self._builder.load(self.address(row, column, wide), align=4)

    def store(self, value: Any, row: int, column: Any, wide: bool) -> None:
        """Write."""
        self._builder.store(value, self.address(row, column, wide), align=4)

    def factors(self, first: Any, columns: int) -> list[list[Any]]:
        """Read so many elements of each row."""
        places = [self._builder.add(first, _INDEX(i)) for i in range(columns)]
        return [[self.load(row, at, False) for at in places] for row in range(len(self))]

    def padded(self, row: int, column: Any, count: Any) -> Any:
        """Sixteen elements, of which only so many are read; the others are zeros."""
        builder = self._builder
        room = cgutils.alloca_once(builder, _FLOATS)
        builder.store(_ZEROS, room)
        places = builder.bitcast(room, _FLOAT.as_pointer())
        with cgutils.for_range(builder, count) as loop:
            value = self.load(row, builder.add(column, loop.index), False)
            builder.store(value, builder.gep(places, [loop.index]))
        return builder.load(room)

    def ask(self, column: Any) -> None:
        """Ask memory for what comes after a column, in these rows or in the next ones."""
        builder, byte = self._builder, ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        ahead = builder.add(column, _INDEX(_AHEAD))
        beyond = builder.add(ahead, builder.mul(self.columns, _INDEX(len(self) - 1)))
        place = builder.select(builder.icmp_signed("<", ahead, self.columns), ahead, beyond)
        for row in range(len(self)):
            address = builder.bitcast(self.address(row, place), byte)
            builder.call(hint, [address, _WORD(0), _WORD(3), _WORD(1)])


class _Sum:
    """Rows of M: those of a gradient, to which those of a residual times a scale are added.

    Whatever is read of M is M in memory from then on.
    """

    def __init__(self, builder: Any, x: _Rows, residual: _Rows | None, loss_scale: Any) -> None:
        self._builder, self._scale = builder, loss_scale
        self._x, self._residual = x, residual

    def __len__(self) -> int:
        return len(self._x)

    @property
    def columns(self) -> Any:
        """Number of columns."""
        return self._x.columns

    def load(self, column: Any, wide: bool) -> list[Any]:
        """Read a column of all rows, or sixteen columns."""
        values = [self._x.load(row, column, wide) for row in range(len(self))]
        if self._residual is not None:
            loss_scale = _spread(self._builder, self._scale, wide)
            for row, value in enumerate(values):
                added = self._builder.fmul(loss_scale, self._residual.load(row, column, wide))
                values[row] = self._builder.fadd(value, added)
            for row, value in enumerate(values):
                self._x.store(value, row, column, wide)
        return values

    def load_last(self, column: Any, count: Any) -> list[Any]:
        """Read the last so many columns, and zeros."""
        with cgutils.for_range(self._builder, count) as loop:
            self.load(self._builder.add(column, loop.index), False)
        return [self._x.padded(row, column, count) for row in range(len(self))]

    def ask(self, column: Any) -> None:
        """Ask memory for what comes after a column."""
        self._x.ask(column)
        if self._residual is not None:
            self._residual.ask(column)


def _is_constant(*kinds: Any) -> bool:
    return all(isinstance(kind, types.IntegerLiteral) for kind in kinds)


def _rows_of(
    context: Any, builder: Any, signature: Any, arguments: Any, number: int, first: Any, rows: int
) -> Any:
    """The rows of an argument; None of None."""
    kind = signature.args[number]
    if isinstance(kind, types.NoneType):
        return None
    return _Rows(context, builder, kind, arguments[number], first, rows)


def _over_columns(builder: Any, columns: Any, body: Callable[[Any, bool], None]) -> None:
    """Call ``body(column, wide)`` for each sixteen columns, and for each one of the rest."""
    groups = builder.udiv(columns, _INDEX(LANES))
    with cgutils.for_range(builder, groups) as loop:
        body(builder.mul(loop.index, _INDEX(LANES)), True)
    done = builder.mul(groups, _INDEX(LANES))
    with cgutils.for_range(builder, builder.sub(columns, done)) as loop:
        body(builder.add(done, loop.index), False)


@contextmanager
def _blocks(builder: Any, columns: Any) -> Iterator[tuple[Any, Any]]:
    """Where each block of columns begins, and how many it has."""
    count = builder.udiv(builder.add(columns, _INDEX(BLOCK - 1)), _INDEX(BLOCK))
    with cgutils.for_range(builder, count) as loop:
        begin = builder.mul(loop.index, _INDEX(BLOCK))
        left = builder.sub(columns, begin)
        whole = builder.icmp_unsigned(">", left, _INDEX(BLOCK))
        yield begin, builder.select(whole, _INDEX(BLOCK), left)


def _halved(builder: Any, lanes: Any) -> Any:
    """Lane j takes in lane j + half, for half = 8, 4, 2, 1."""
    half = LANES // 2
    while half:
        low = ir.Constant(ir.VectorType(_WORD, half), list(range(half)))
        high = ir.Constant(ir.VectorType(_WORD, half), list(range(half, 2 * half)))
        parts = [builder.shuffle_vector(lanes, lanes, places) for places in (low, high)]
        lanes = builder.fadd(parts[0], parts[1])
        half //= 2
    return builder.extract_element(lanes, _WORD(0))


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

    def take(self, elements: list[Any], vectors: Iterable[Any]) -> None:
        """Add sixteen columns' products."""
        builder, places = self._builder, iter(self._lanes)
        for vector in vectors:
            for element in elements:
                lanes = next(places)
                product = builder.fmul(vector, element)
                builder.store(builder.fadd(builder.load(lanes), product), lanes)

    def end(self) -> None:
        """Add a block's sums to the totals."""
        builder = self._builder
        for lanes, total in zip(self._lanes, self._totals, strict=True):
            block = _halved(builder, builder.load(lanes))
            builder.store(builder.fadd(builder.load(total), block), total)

    def write(self, p: _Rows, first: Any) -> None:
        """Write the totals of row i to column ``first + i``."""
        for number, total in enumerate(self._totals):
            column = self._builder.add(first, _INDEX(number % self._rows))
            p.store(self._builder.load(total), number // self._rows, column, False)


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
    count = rows.literal_value, vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def part(number: int, first: Any, size: int) -> Any:
            return _rows_of(context, builder, signature, arguments, number, first, size)

        i, k = arguments[7:]
        m = _Sum(builder, part(2, i, count[0]), part(3, i, count[0]), arguments[4])
        sums, q = _Lanes(builder, *count), part(5, k, count[1])
        with _blocks(builder, m.columns) as (begin, size):
            sums.begin()
            groups, rest = builder.udiv(size, _INDEX(LANES)), builder.urem(size, _INDEX(LANES))
            with cgutils.for_range(builder, groups) as loop:
                column = builder.add(begin, builder.mul(loop.index, _INDEX(LANES)))
                m.ask(column)
                rows = (q.load(row, column, True) for row in range(len(q)))
                sums.take(m.load(column, True), rows)
            with builder.if_then(builder.icmp_unsigned("!=", rest, _INDEX(0))):
                last = builder.add(begin, builder.sub(size, rest))
                rows = (q.padded(row, last, rest) for row in range(len(q)))
                sums.take(m.load_last(last, rest), rows)
            sums.end()
        sums.write(part(6, k, count[1]), i)
        return context.get_dummy_value()

    place = types.intp
    return types.void(rows, vectors, x, residual, loss_scale, q, p, place, place), generate


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
    count = rows.literal_value, vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def part(number: int, first: Any, size: int) -> Any:
            return _rows_of(context, builder, signature, arguments, number, first, size)

        i, k = arguments[7:]
        m = _Sum(builder, part(2, i, count[0]), part(3, i, count[0]), arguments[4])
        factors, out = part(5, k, count[1]).factors(i, count[0]), part(6, k, count[1])

        def body(column: Any, wide: bool) -> None:
            if wide:
                m.ask(column)
            elements = m.load(column, wide)
            for number in range(count[1]):
                total = out.load(number, column, wide)
                for factor, element in zip(factors[number], elements, strict=True):
                    product = builder.fmul(_spread(builder, factor, wide), element)
                    total = builder.fadd(total, product)
                out.store(total, number, column, wide)

        _over_columns(builder, m.columns, body)
        return context.get_dummy_value()

    place = types.intp
    return types.void(rows, vectors, x, residual, loss_scale, p, out, place, place), generate


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
    count = rows.literal_value, vectors.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def part(number: int, first: Any, size: int) -> Any:
            return _rows_of(context, builder, signature, arguments, number, first, size)

        i, first = arguments[9], _INDEX(0)
        x, residual = part(2, i, count[0]), part(3, i, count[0])
        pairs = [
            (part(p, first, count[1]).factors(i, count[0]), part(p + 1, first, count[1]))
            for p in (5, 7)
        ]

        def products(pair: int, column: Any, wide: bool) -> list[Any]:
            factors, q = pairs[pair]
            lines = [q.load(number, column, wide) for number in range(count[1])]
            totals = []
            for row in range(count[0]):
                terms = [
                    builder.fmul(_spread(builder, vector[row], wide), line)
                    for vector, line in zip(factors, lines, strict=True)
                ]
                totals.append(reduce(builder.fadd, terms))
            return totals

        def body(column: Any, wide: bool) -> None:
            if wide:
                x.ask(column)
                residual.ask(column)
            loss_scale, missed = _spread(builder, arguments[4], wide), []
            for row, value in enumerate(products(0, column, wide)):
                lost = builder.fsub(x.load(row, column, wide), value)
                missed.append(builder.fmul(lost, loss_scale))
            for rows, values in ((residual, missed), (x, products(1, column, wide))):
                for row, value in enumerate(values):
                    rows.store(value, row, column, wide)

        _over_columns(builder, x.columns, body)
        return context.get_dummy_value()

    return types.void(rows, vectors, x, residual, back, p, q, out_p, out_q, types.intp), generate
