"""The bijection of Philox4x32-7, for all kernels that draw random numbers.

A round needs two 32 x 32 -> 64 bit products. Words are kept in uint64 because numba widens every
uint32 operation to that anyway; LLVM then uses the 64-bit lane product on the low halves.
"""

from __future__ import annotations

import numpy as np

from ..philox import ROUNDS
from ._jit import lean_nested

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
