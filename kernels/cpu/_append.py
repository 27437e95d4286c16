"""Lists of what lies in a range of magnitudes, or is flagged, made sixteen elements at a time.

A comparison of vectors tells which lanes are wanted; where none is, which is nearly everywhere in
a sparse selection, sixteen elements cost one branch. The wanted lanes go to the end of a list by
one compressing store (AVX-512; elsewhere LLVM makes a store per lane of it).

Magnitudes are compared as the integers that their bits are (`_feedback.magnitude_bits`); the range
is `least` to `least + extent`, both included.

A flag, a bit per element, says that it is wanted. Flags are written without a branch: a branch per
row would be foretold wrongly wherever some candidate turns up, which takes longer than the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from .._arrays import F32, U32, U64
from ._feedback import magnitude_bits
from ._jit import intrinsic, lean_nested

LANES = 16
LARGEST = 0x7FFFFFFF  # of all magnitudes

_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_PLACES = ir.Constant(_WORDS, list(range(LANES)))


def _spread(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_WORDS, ir.Undefined)
    one = builder.insert_element(undefined, value, _WORD(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_WORDS, [0] * LANES))


def _load(builder: Any, data: Any, index: Any) -> Any:
    address = builder.bitcast(builder.gep(data, [index]), _WORDS.as_pointer())
    return builder.load(address, align=4)


def _store(builder: Any, vector: Any, data: Any, index: Any, mask: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_WORDS, _WORD.as_pointer(), _MASK])
    name = f"llvm.masked.compressstore.v{LANES}i32"
    store = cgutils.get_or_insert_function(builder.module, kind, name)
    address = builder.bitcast(builder.gep(data, [index]), _WORD.as_pointer())
    builder.call(store, [vector, address, mask])


def _append(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _, _, at, least, extent, base, _, _, found = arguments

    def data(argument: int) -> Any:
        array = context.make_array(signature.args[argument])
        return array(context, builder, arguments[argument]).data

    vector = _load(builder, data(1), at)
    magnitude = builder.and_(vector, ir.Constant(_WORDS, [LARGEST] * LANES))
    distance = builder.sub(magnitude, _spread(builder, least))
    mask = builder.icmp_unsigned("<=", distance, _spread(builder, extent))
    bits = builder.bitcast(mask, ir.IntType(LANES))
    total = cgutils.alloca_once_value(builder, found)
    with builder.if_then(builder.icmp_unsigned("!=", bits, ir.IntType(LANES)(0))):
        if signature.args[0] == types.none:
            first = builder.add(base, builder.trunc(at, _WORD))
            source = builder.add(_spread(builder, first), _PLACES)
        else:
            source = _load(builder, data(0), at)
        _store(builder, source, data(6), found, mask)
        _store(builder, vector, data(7), found, mask)
        count = builder.zext(builder.ctpop(bits), found.type)
        builder.store(builder.add(found, count), total)
    return builder.load(total)


@intrinsic
def _append_lanes(
    typing: Any,
    sources: Any,
    values: Any,
    at: Any,
    least: Any,
    extent: Any,
    base: Any,
    into: Any,
    chosen: Any,
    found: Any,
) -> Any:
    """Append to a list what is wanted of `values[at : at + 16]`; return the list's new length."""
    word = types.uint32
    arguments = (sources, values, types.intp, word, word, word, into, chosen, types.intp)
    return types.intp(*arguments), _append


@lean_nested
def append(
    sources: U32 | None,
    values: F32,
    least: np.uint32,
    extent: np.uint32,
    base: np.uint32,
    into: U32,
    chosen: F32,
    found: int,
) -> int:
    """Append the values in a range, and where they are from, to a list.

    Args:
        sources: Index of each value; None if value i has the index base + i.
        values: The values to look at.
        least: The smallest magnitude that is wanted.
        extent: The largest one less the smallest one.
        base: Index of the first value.
        into: The list's indices.
        chosen: The list's values.
        found: Its length so far.

    Returns:
        Its length now. Nothing is written from there on.
    """
    whole = values.size // LANES * LANES
    for at in range(0, whole, LANES):
        found = _append_lanes(sources, values, at, least, extent, base, into, chosen, found)
    for at in range(whole, values.size):
        if np.uint32(magnitude_bits(values[at]) - least) <= extent:
            into[found] = np.uint32(base + np.uint32(at)) if sources is None else sources[at]
            chosen[found] = values[at]
            found += 1
    return found


WORD = 64  # elements whose flags are in one word, from the lowest bit upwards

_AT_ONCE = 2  # where one of a hundred elements is wanted, a word rarely has more


@intrinsic
def _lowest(typing: Any, word: Any) -> Any:
    """The index of the lowest bit that is set; 0 if none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        index = builder.cttz(arguments[0], ir.IntType(1)(0))
        return builder.and_(index, index.type(WORD - 1))

    return types.int64(types.uint64), generate


@intrinsic
def _count(typing: Any, word: Any) -> Any:
    """How many bits are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@lean_nested
def _list(
    word: np.uint64,
    count: int,
    q: F32,
    begin: int,
    first: np.uint32,
    indices: U32,
    values: F32,
    found: int,
) -> np.uint64:
    """Put so many of a word's elements on the list; return the flags that are left."""
    for i in range(count):
        at = begin + _lowest(word)
        indices[found + i] = np.uint32(first + np.uint32(at))
        values[found + i] = q[at]
        word &= np.uint64(word - np.uint64(1))
    return word


@lean_nested
def list_flagged(
    flags: U64, q: F32, first: np.uint32, indices: U32, values: F32, found: int
) -> int:
    """Put flagged elements on a list.

    Args:
        flags: Whether each is wanted.
        q: The elements.
        first: Index of the first one.
        indices: The list's indices; there must be room for all elements.
        values: The list's values.
        found: Its length so far.

    Returns:
        Its length now; what comes after it may be overwritten.
    """
    whole = q.size // WORD
    for w in range(whole):
        count = _count(flags[w])
        left = _list(flags[w], int(np.int64(_AT_ONCE)), q, w * WORD, first, indices, values, found)
        if count > _AT_ONCE:
            rest = found + _AT_ONCE
            _list(left, count - _AT_ONCE, q, w * WORD, first, indices, values, rest)
        found += count
    if q.size > whole * WORD:
        count = _count(flags[whole])
        _list(flags[whole], count, q, whole * WORD, first, indices, values, found)
        found += count
    return found
