"""Checksum of NumPy arrays; see :mod:`compressa.kernels.checksums`.

Eight words are mixed at a time, of which LLVM makes one vector where processors have such; left to
itself it takes half of that, and multiplies every index by A instead of adding A again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from .._arrays import U8
from ..checksums import A, B
from ._bytes import load_word
from ._jit import intrinsic, jit

_A, _B = np.uint64(A), np.uint64(B)
_LANES, _WORD_BYTES = 8, 8
_LINE_BYTES = _LANES * _WORD_BYTES
_WORD = ir.IntType(64)
_WORDS = ir.VectorType(_WORD, _LANES)


def _all(number: int) -> Any:
    return ir.Constant(_WORDS, [number % (1 << 64)] * _LANES)


@intrinsic
def _sum_of_lines(typing: Any, data: Any, lines: Any) -> Any:
    """The sum of the mixed words of so many whole lines, from the first byte on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        begin = context.make_array(data)(context, builder, arguments[0]).data
        line = builder.bitcast(begin, _WORDS.as_pointer())
        first = ir.Constant(_WORDS, [i * A % (1 << 64) for i in range(_LANES)])
        steps = cgutils.alloca_once_value(builder, first)
        total = cgutils.alloca_once_value(builder, _all(0))
        with cgutils.for_range(builder, arguments[1]) as loop:
            step = builder.load(steps)
            words = builder.load(builder.gep(line, [loop.index]), align=1)
            m = builder.add(words, step)
            m = builder.mul(builder.xor(m, builder.lshr(m, _all(32))), _all(B))
            m = builder.xor(m, builder.lshr(m, _all(29)))
            builder.store(builder.add(builder.load(total), m), total)
            builder.store(builder.add(step, _all(_LANES * A)), steps)
        found, result = builder.load(total), _WORD(0)
        for lane in range(_LANES):
            result = builder.add(result, builder.extract_element(found, ir.IntType(32)(lane)))
        return result

    return types.uint64(data, types.intp), generate


@jit
def _mixed(word: np.uint64, index: int) -> np.uint64:
    m = word + np.uint64(index) * _A
    m = (m ^ (m >> np.uint64(32))) * _B
    return m ^ (m >> np.uint64(29))


@jit
def checksum_of(data: U8) -> np.uint64:
    """Return the checksum; compiled code may call this."""
    lines, words = data.size // _LINE_BYTES, data.size // _WORD_BYTES
    total: np.uint64 = np.uint64(data.size) + _sum_of_lines(data, lines)
    for i in range(lines * _LANES, words):
        total += _mixed(load_word(data, _WORD_BYTES * i), i)
    if data.size % _WORD_BYTES:
        last = np.uint64(0)
        for b in range(_WORD_BYTES * words, data.size):
            last |= np.uint64(data[b]) << np.uint64(8 * (b - _WORD_BYTES * words))
        total += _mixed(last, words)
    return total


def checksum(data: U8) -> int:
    return int(checksum_of(data))
