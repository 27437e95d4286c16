"""Philox4x32-7 for NumPy arrays; see :mod:`compressa.kernels.philox`.

A round needs two 32 x 32 -> 64 bit products. Words are kept in uint64 because numba widens every
uint32 operation to that anyway; LLVM then uses the 64-bit lane product on the low halves.
"""

from __future__ import annotations

import numpy as np

from .._arrays import U32, U64
from ..philox import ROUNDS
from ._jit import jit

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@jit
def _four_words(
    block: np.uint64, step: np.uint64, parameter: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    c0, c1, c2, c3 = block & _WORD, block >> _SHIFT, step, parameter
    for _ in range(ROUNDS):
        first, second = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c2 = (second >> _SHIFT) ^ c1 ^ k0, (first >> _SHIFT) ^ c3 ^ k1
        c1, c3 = second & _WORD, first & _WORD
        k0, k1 = (k0 + _KEY_STEP_0) & _WORD, (k1 + _KEY_STEP_1) & _WORD
    return c0, c1, c2, c3


@jit
def _whole_blocks(
    out: U32, first: np.uint64, step: np.uint64, parameter: np.uint64, key: U64
) -> None:
    for i in range(out.size // 4):
        words = _four_words(first + np.uint64(i), step, parameter, key[0], key[1])
        out[4 * i] = words[0]
        out[4 * i + 1] = words[1]
        out[4 * i + 2] = words[2]
        out[4 * i + 3] = words[3]


@jit
def _single_words(
    out: U32, start: np.uint64, step: np.uint64, parameter: np.uint64, key: U64
) -> None:
    for i in range(out.size):
        element = start + np.uint64(i)
        words = _four_words(element >> np.uint64(2), step, parameter, key[0], key[1])
        out[i] = words[np.int64(element & np.uint64(3))]


def random_words(
    out: U32, *, seed: int, stream: int, step: int, parameter: int, start: int = 0
) -> None:
    """See :func:`compressa.kernels.philox.random_words`."""
    key = np.array([seed % 2**32, stream % 2**32], np.uint64)
    counter = np.uint64(step % 2**32), np.uint64(parameter % 2**32)
    head = min(-start % 4, out.size)
    tail = head + (out.size - head) // 4 * 4
    _single_words(out[:head], np.uint64(start), *counter, key)
    _whole_blocks(out[head:tail], np.uint64((start + head) // 4), *counter, key)
    _single_words(out[tail:], np.uint64(start + tail), *counter, key)
