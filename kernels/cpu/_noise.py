"""Random bits per element for stochastic rounding; see :mod:`compressa.kernels.philox`.

The bits of whole rows are drawn at once into a buffer that stays in the first-level cache, so that
a kernel's own loops only read them.

A round of Philox needs two 32 x 32 -> 64 bit products. Words are kept in uint64 because numba
widens every uint32 operation to that anyway; LLVM then uses the 64-bit lane product on the low
halves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._arrays import U32
from ..philox import FRACTION_BITS, ROUNDS, ROW, Noise
from ._jit import lean, lean_nested
from ._view import view

_BLOCKS = ROW // 8
_BITS = np.uint32(2**FRACTION_BITS - 1)  # the lowest of a word, for the first of two elements
_UPPER = np.uint32(32 - FRACTION_BITS)  # what lies below the highest, which the second gets

Key = npt.NDArray[np.uint64]

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@lean_nested
def four_words(
    block: np.uint64, step: np.uint64, parameter: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The words of one block; their upper halves hold rubbish, which every product masks."""
    c0, c1, c2, c3 = block & _WORD, block >> _SHIFT, step, parameter
    for _ in range(ROUNDS):
        first, second = (c0 & _WORD) * _MULTIPLIER_0, (c2 & _WORD) * _MULTIPLIER_1
        c0, c2 = (second >> _SHIFT) ^ c1 ^ k0, (first >> _SHIFT) ^ c3 ^ k1
        c1, c3 = second, first
        k0, k1 = (k0 + _KEY_STEP_0) & _WORD, (k1 + _KEY_STEP_1) & _WORD
    return c0, c1, c2, c3


@lean_nested
def _row(out: U32, row: np.uint64, key: Key) -> None:
    """One row: word w of its block i has the numbers of elements 256 w + i and 128 further."""
    step, parameter, k0, k1 = key[0], key[1], key[2], key[3]
    for i in range(_BLOCKS):
        block = row * np.uint64(_BLOCKS) + np.uint64(i)
        a, b, c, d = four_words(block, step, parameter, k0, k1)
        out[i] = np.uint32(a) & _BITS
        out[i + _BLOCKS] = np.uint32(a) >> _UPPER
        out[i + 2 * _BLOCKS] = np.uint32(b) & _BITS
        out[i + 3 * _BLOCKS] = np.uint32(b) >> _UPPER
        out[i + 4 * _BLOCKS] = np.uint32(c) & _BITS
        out[i + 5 * _BLOCKS] = np.uint32(c) >> _UPPER
        out[i + 6 * _BLOCKS] = np.uint32(d) & _BITS
        out[i + 7 * _BLOCKS] = np.uint32(d) >> _UPPER


@lean
def drawn_at(key: Key | None, low: int, high: int, buffer: U32 | None) -> int:
    """Where in the buffer the bits of elements low to high of the call's array begin.

    ``key[4]`` is the element number of the array's first element; ``key[5]`` to ``key[6]`` are
    those that the buffer holds, which has room for the rows of a block. If both are None, as
    without noise, there is nothing to draw.
    """
    if key is None or buffer is None:
        return low - low
    first, last = int(key[4]) + low, int(key[4]) + high
    if first < int(key[5]) or last > int(key[6]):
        row = first // ROW
        # Two for short blocks, which have room for them: faster than one by a few percent.
        rows = 2 if high - low < ROW else (last - 1) // ROW + 1 - row
        for i in range(rows):
            _row(view(buffer, i * ROW, (i + 1) * ROW), np.uint64(row + i), key)
        key[5], key[6] = np.uint64(row * ROW), np.uint64((row + rows) * ROW)
    return first - int(key[5])


def noise_key(noise: Noise | None, low: int) -> Key | None:
    """The numbers that `draw` needs, for a slice that begins at element ``low`` of the array."""
    if noise is None:
        return None
    wrapped = (number % 2**32 for number in (noise.step, noise.parameter, noise.seed, noise.stream))
    return np.array([*wrapped, noise.start + low, 0, 0], np.uint64)


def noise_buffer(noise: Noise | None, block: int) -> U32 | None:
    """Room for the bits of a block, wherever in a row it begins."""
    if noise is None:
        return None
    return np.empty(((max(block, 1) - 1) // ROW + 2) * ROW, np.uint32)
