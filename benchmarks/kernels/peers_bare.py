"""Loops that read a gradient and write as much as a payload has, and do nothing else.

How far they stay below the yardstick is what this memory does to a stream that is mostly read: no
kernel of the same bytes can do much better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from compressa.kernels.cpu._jit import intrinsic, lean
from compressa.kernels.cpu._prefetch import FAR, LINE_BYTES, NEAR
from compressa.kernels.cpu._vector import Hints, Memory, for_rows
from compressa.kernels.cpu._view import view
from compressa.kernels.threads import over_slices
from numba.core import types

from benchmarks.kernels.operands import Operands
from benchmarks.timing import Call

_ROW = 128

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


def _narrow(each: int) -> Any:
    """To a byte the lowest bits of so many words; ask memory for as many from a position on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = zip(signature.args[:4], arguments[:4], strict=True)
        words, narrow, source, target = (Memory(context, builder, *array) for array in given)

        def row(at: Any, lanes: int) -> None:
            joined = words.read(at, lanes)
            for plane in range(1, each):
                index = builder.add(at, builder.mul(narrow.size, at.type(plane)))
                joined = joined | (words.read(index, lanes) << plane * (8 // each))
            narrow.write(at, joined)

        position = builder.add(arguments[4], arguments[4].type(NEAR))
        for first in range(0, _ROW, each * LINE_BYTES):
            index = builder.add(position, position.type(first))
            target.hint(builder.udiv(index, index.type(each)))
        hints = Hints(builder, (source,), position, lines=each, far=FAR)
        for_rows(builder, narrow.size, row, hints)
        return context.get_dummy_value()

    def declare(typing: Any, words: Any, narrow: Any, x: Any, out: Any, low: Any) -> Any:
        return types.void(words, narrow, x, out, low), generate

    return intrinsic(declare)


_narrow_1, _narrow_2 = _narrow(1), _narrow(2)


@lean
def _bytes(x: U32, out: U8) -> None:
    for low in range(0, x.size, _ROW):
        high = min(low + _ROW, x.size)
        _narrow_1(view(x, low, high), view(out, low, high), x, out, low)


@lean
def _nibbles(x: U32, out: U8) -> None:
    for low in range(0, x.size - _ROW + 1, _ROW):
        high = low + _ROW
        _narrow_2(view(x, low, high), view(out, low >> 1, high >> 1), x, out, low)


@lean
def _read(x: U32) -> np.uint32:
    """The hardware foresees a single stream best: hints would make this slower."""
    seen = np.uint32(0)
    for i in range(x.size):
        seen |= x[i]
    return seen


def read(operands: Operands, _: Any) -> Call:
    """Read four bytes, and write nothing."""
    turns, seen = operands.turns(), [np.uint32(0)]

    def call() -> None:
        x = next(turns)[0].numpy().view(np.uint32)

        def work(low: int, high: int) -> None:
            seen[0] = _read(x[low:high])

        over_slices(x.size, _ROW, work)

    return call


def one_byte(operands: Operands, _: Any) -> Call:
    """Read four bytes and write one."""
    return _loop(operands, _bytes, 1)


def half_a_byte(operands: Operands, _: Any) -> Call:
    """Read four bytes and write half of one."""
    return _loop(operands, _nibbles, 2)


def _loop(operands: Operands, kernel: Any, each: int) -> Call:
    out, turns = operands.payload(-(-operands.elems // each)).numpy(), operands.turns()

    def call() -> None:
        x = next(turns)[0].numpy().view(np.uint32)
        over_slices(
            x.size, _ROW, lambda low, high: kernel(x[low:high], out[low // each : -(-high // each)])
        )

    return call
