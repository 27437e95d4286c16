"""A bit per element says that it is wanted; the wanted ones are put on a list.

Sixteen elements are compared at once, and their flags are written without a branch. A branch per
row would be foretold wrongly wherever some candidate turns up, which takes longer than the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from .._arrays import F32, U32, U64
from ._intrinsic import intrinsic
from ._jit import lean_nested

WORD = 64  # elements whose flags are in one word, from the lowest bit upwards

_AT_ONCE = 2  # where one of a hundred elements is wanted, a word rarely has more


@intrinsic
def _lowest(typing: Any, word: Any) -> Any:
    """The place of the lowest bit that is set; 0 if none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.cttz(arguments[0], ir.IntType(1)(0))
        return builder.and_(place, place.type(WORD - 1))

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
