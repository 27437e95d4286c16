"""Vectors of 16 neighbouring elements, for the loops that decide how fast a kernel is.

LLVM makes vectors of plain loops too, but of 8 lanes, and it unrolls them so far that the loops
over a block's few hundred elements spend much of their time in scalar remainders. Here a loop's
body is written once, as an expression of `Vector`; it is generated for rows of 16 elements and
again for the single elements of the rest. A machine without such wide registers uses several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ._prefetch import hint

LANES = 16

_FLOAT, _WORD = ir.FloatType(), ir.IntType(32)
_FLOATS = _FLOAT, ir.DoubleType()


def lanes_of(kind: Any, lanes: int) -> Any:
    """The type of so many values; of one, the value's own."""
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


class Vector:
    """Values of one type, floats or 32-bit words, in as many lanes as its fellows.

    Numbers in an expression are constants; a float may not meet a word.
    """

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def lanes(self) -> int:
        """How many values there are."""
        return int(getattr(self.value.type, "count", 1))

    @property
    def is_float(self) -> bool:
        """Whether these are floats."""
        return getattr(self.value.type, "element", self.value.type) in _FLOATS

    def __add__(self, other: Vector | float) -> Vector:
        return self._with(other, self.builder.fadd if self.is_float else self.builder.add)

    def __sub__(self, other: Vector | float) -> Vector:
        return self._with(other, self.builder.fsub if self.is_float else self.builder.sub)

    def __mul__(self, other: Vector | float) -> Vector:
        return self._with(other, self.builder.fmul)

    def __and__(self, other: Vector | int) -> Vector:
        return self._with(other, self.builder.and_)

    def __or__(self, other: Vector | int) -> Vector:
        return self._with(other, self.builder.or_)

    def __lshift__(self, other: int) -> Vector:
        return self._with(other, self.builder.shl)

    def __rshift__(self, other: int) -> Vector:
        """Shift words right, keeping their signs."""
        return self._with(other, self.builder.ashr)

    def shifted_down(self, bits: int) -> Vector:
        """Words shifted right, with zeros from above."""
        return self._with(bits, self.builder.lshr)

    def at_least(self, other: Vector) -> Vector:
        """The larger of both, of floats or signed words."""
        return self._chosen(">", other)

    def at_most(self, other: Vector) -> Vector:
        """The smaller of both, of floats or signed words."""
        return self._chosen("<", other)

    def negative(self) -> Vector:
        """Words: 1 for floats below 0, and 0 for others, of which -0 and NaN are."""
        flags = self.builder.fcmp_ordered("<", self.value, self._fellow(0.0))
        return Vector(self.builder, self.builder.zext(flags, lanes_of(_WORD, self.lanes)))

    def is_below(self, bound: Vector | float) -> Any:
        """Flags: which signed words are smaller."""
        return self.builder.icmp_signed("<", self.value, self._fellow(bound))

    def reaches(self, bound: Vector) -> Any:
        """Flags: which unsigned words are at least as large."""
        return self.builder.icmp_unsigned(">=", self.value, bound.value)

    def where(self, flags: Any, otherwise: Vector | float) -> Vector:
        """These values where a flag is set, others elsewhere."""
        other = self._fellow(otherwise)
        return Vector(self.builder, self.builder.select(flags, self.value, other))

    def magnitude(self) -> Vector:
        """Floats without their signs."""
        return (self.words() & 0x7FFFFFFF).as_floats()

    def folded(self, join: Callable[[Vector, Vector], Vector]) -> Vector:
        """One value of all lanes: lane j takes in lane j + half, for half = 8, 4, 2, 1."""
        left = self
        while left.lanes > 1:
            half = left.lanes // 2
            left = join(left._picked(range(half)), left._picked(range(half, 2 * half)))
        return left

    def words(self) -> Vector:
        """The bits of floats."""
        return self._cast(self.builder.bitcast, _WORD)

    def as_floats(self) -> Vector:
        """The floats that have these bits."""
        return self._cast(self.builder.bitcast, _FLOAT)

    def truncated(self) -> Vector:
        """Floats as signed words, without their fractions."""
        return self._cast(self.builder.fptosi, _WORD)

    def floats(self) -> Vector:
        """Signed words as the floats next to them."""
        return self._cast(self.builder.sitofp, _FLOAT)

    def _picked(self, lanes: Sequence[int]) -> Vector:
        if len(lanes) == 1:
            return Vector(self.builder, self.builder.extract_element(self.value, _WORD(lanes[0])))
        picks = ir.Constant(ir.VectorType(_WORD, len(lanes)), list(lanes))
        return Vector(self.builder, self.builder.shuffle_vector(self.value, self.value, picks))

    def _cast(self, cast: Callable[[Any, Any], Any], kind: Any) -> Vector:
        return Vector(self.builder, cast(self.value, lanes_of(kind, self.lanes)))

    def _with(self, other: Vector | float, operation: Callable[[Any, Any], Any]) -> Vector:
        return Vector(self.builder, operation(self.value, self._fellow(other)))

    def _chosen(self, relation: str, other: Vector) -> Vector:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        better = compare(relation, self.value, other.value)
        return Vector(self.builder, self.builder.select(better, self.value, other.value))

    def _fellow(self, other: Vector | float) -> Any:
        if isinstance(other, Vector):
            return other.value
        kind = self.value.type
        return ir.Constant(kind, other if self.lanes == 1 else [other] * self.lanes)


def spread(builder: Any, value: Any, lanes: int) -> Vector:
    """A value in every lane."""
    if lanes == 1:
        return Vector(builder, value)
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, _WORD(0))
    picks = ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes)
    return Vector(builder, builder.shuffle_vector(first, empty, picks))


class Memory:
    """A contiguous array, or a row of a matrix, read and written in vectors.

    `size` is how many elements it has; of a matrix, how many each row has.
    """

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        whole = context.make_array(kind)(context, builder, array)
        *_, self.size = cgutils.unpack_tuple(builder, whole.shape, kind.ndim)
        self._builder = builder
        self._dtype = kind.dtype
        self._element = context.get_value_type(kind.dtype)
        self._data = whole.data

    def row(self, number: Any) -> Memory:
        """One row of a matrix."""
        row = copy(self)
        row._data = self._builder.gep(self._data, [self._builder.mul(number, self.size)])
        return row

    def read(self, at: Any, lanes: int) -> Vector:
        """Floats as float32 (int16 holds half precision, uint16 bfloat16), words as they are."""
        value = self._builder.load(self._address(at, lanes), align=self._element_bytes)
        if self._dtype == types.int16:
            halves = self._builder.bitcast(value, lanes_of(ir.HalfType(), lanes))
            return Vector(self._builder, self._builder.fpext(halves, lanes_of(_FLOAT, lanes)))
        if self._dtype == types.uint16:
            wide = self._widened(value, lanes) << 16
            return wide.as_floats()
        return Vector(self._builder, value)

    def write(self, at: Any, vector: Vector) -> None:
        """Write float32 or words; of words, the lowest bits if elements are narrower."""
        value, kind = vector.value, lanes_of(self._element, vector.lanes)
        if kind != value.type:
            value = self._builder.trunc(value, kind)
        address = self._address(at, vector.lanes)
        self._builder.store(value, address, align=self._element_bytes)

    def write_flags(self, at: Any, flags: Any) -> None:
        """Write flags of a row to bits ``at`` and on, or set the bit of a single element."""
        half = ir.IntType(LANES)
        halves = self._builder.bitcast(self._data, half.as_pointer())
        address = self._builder.gep(halves, [self._builder.udiv(at, at.type(LANES))])
        if flags.type == ir.IntType(1):
            bit = self._builder.trunc(self._builder.urem(at, at.type(LANES)), half)
            bits = self._builder.shl(self._builder.zext(flags, half), bit)
            bits = self._builder.or_(self._builder.load(address), bits)
        else:
            bits = self._builder.bitcast(flags, half)
        self._builder.store(bits, address)

    def hint(self, at: Any, *, second_level: bool = False) -> None:
        """Ask for the cache line of an element; any address is harmless."""
        address = self._builder.gep(self._data, [at])
        hint(self._builder, address, second_level=second_level)

    @property
    def _element_bytes(self) -> int:
        return int(self._dtype.bitwidth) // 8

    def _address(self, at: Any, lanes: int) -> Any:
        address = self._builder.gep(self._data, [at])
        return self._builder.bitcast(address, lanes_of(self._element, lanes).as_pointer())

    def _widened(self, value: Any, lanes: int) -> Vector:
        return Vector(self._builder, self._builder.zext(value, lanes_of(_WORD, lanes)))


def memory(context: Any, builder: Any, kind: Any, array: Any) -> Memory | None:
    """The memory of an array; None of None."""
    if isinstance(kind, types.NoneType):
        return None
    return Memory(context, builder, kind, array)


class Hints:
    """Asks memory, in each iteration of a loop over rows, for lines of what comes later.

    Args:
        builder: Writes the instructions.
        streams: Of which memory; None has nothing to ask for.
        position: The element that the first iteration asks for.
        rows: How many rows an iteration has.
        lines: How many times 16 elements it asks for, of each stream.
        far: Elements behind them that it asks the second level of the cache for; 0 for none.
    """

    def __init__(
        self,
        builder: Any,
        streams: Sequence[Memory | None],
        position: Any,
        *,
        rows: int = 1,
        lines: int = 1,
        far: int = 0,
    ) -> None:
        self.rows = rows
        self._builder, self._position, self._lines, self._far = builder, position, lines, far
        self._streams = [stream for stream in streams if stream is not None]

    def ask(self, iteration: Any) -> None:
        """Generate those of one iteration."""
        first = self._builder.mul(iteration, iteration.type(self._lines * LANES))
        for stream in self._streams:
            for line in range(self._lines):
                at = self._builder.add(first, first.type(line * LANES))
                at = self._builder.add(self._position, at)
                stream.hint(at)
                if self._far:
                    far = self._builder.add(at, at.type(self._far))
                    stream.hint(far, second_level=True)


def hints_of(context: Any, builder: Any, signature: Any, arguments: Any, **each: int) -> Hints:
    """Of an intrinsic whose last three arguments are two streams and where to begin in them."""
    given = zip(signature.args[-3:-1], arguments[-3:-1], strict=True)
    streams = [memory(context, builder, *stream) for stream in given]
    return Hints(builder, streams, arguments[-1], **each)


def for_rows(
    builder: Any, size: Any, body: Callable[[Any, int], None], hints: Hints | None = None
) -> None:
    """Generate ``body(at, LANES)`` for all full rows, then ``body(at, 1)`` for what is left."""
    each = 1 if hints is None else hints.rows
    iterations = builder.udiv(size, size.type(each * LANES))
    with cgutils.for_range(builder, iterations) as loop:
        if hints is not None:
            hints.ask(loop.index)
        for i in range(each):
            first = builder.mul(loop.index, size.type(each * LANES))
            body(builder.add(first, size.type(i * LANES)), LANES)
    done = builder.mul(iterations, size.type(each * LANES))
    with cgutils.for_range(builder, builder.sub(size, done)) as loop:
        body(builder.add(done, loop.index), 1)
