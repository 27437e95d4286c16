"""Loops that read a gradient and write as much as a payload has, and do nothing else.

How far they stay below the yardstick is what this memory does to a stream that is mostly read: no
kernel of the same bytes can do much better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compressa.bench.operands import Operands
from compressa.bench.timing import Call
from compressa.kernels.cpu._jit import inlined, lean
from compressa.kernels.cpu._prefetch import fetch
from compressa.kernels.cpu._view import view
from compressa.kernels.threads import over_slices

_ROW = 256
_AHEAD = 512  # elements; quicker than 1024 here

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


@inlined
def _row_to_bytes(x: U32, out: U8) -> None:
    for i in range(out.size):
        out[i] = np.uint8(x[i])


@inlined
def _row_to_nibbles(first: U32, second: U32, out: U8) -> None:
    for i in range(out.size):
        out[i] = np.uint8(first[i] | np.uint32(second[i] << np.uint32(4)))


@lean
def _bytes(x: U32, out: U8) -> None:
    for low in range(0, x.size, _ROW):
        high = min(low + _ROW, x.size)
        fetch(x, low + _AHEAD, high + _AHEAD)
        fetch(out, low + _AHEAD, high + _AHEAD)
        _row_to_bytes(view(x, low, high), view(out, low, high))


@lean
def _nibbles(x: U32, out: U8) -> None:
    half = _ROW // 2
    for low in range(0, x.size - _ROW + 1, _ROW):
        fetch(x, low + _AHEAD, low + _ROW + _AHEAD)
        fetch(out, (low + _AHEAD) // 2, (low + _ROW + _AHEAD) // 2)
        first, second = view(x, low, low + half), view(x, low + half, low + _ROW)
        _row_to_nibbles(first, second, view(out, low // 2, low // 2 + half))


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
