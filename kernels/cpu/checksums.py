"""Checksum of NumPy arrays; see :mod:`compressa.kernels.checksums`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..checksums import A, B
from ._bytes import load_word
from ._jit import jit

_A, _B = np.uint64(A), np.uint64(B)


@jit
def _mixed(word: np.uint64, index: int) -> np.uint64:
    m = word + np.uint64(index) * _A
    m = (m ^ (m >> np.uint64(32))) * _B
    return m ^ (m >> np.uint64(29))


@jit
def checksum_of(data: U8) -> np.uint64:
    """Return the checksum; compiled code may call this."""
    words, total = data.size // 8, np.uint64(data.size)
    for i in range(words):
        total += _mixed(load_word(data, 8 * i), i)
    if data.size % 8:
        last = np.uint64(0)
        for b in range(8 * words, data.size):
            last |= np.uint64(data[b]) << np.uint64(8 * (b - 8 * words))
        total += _mixed(last, words)
    return total


def checksum(data: U8) -> int:
    return int(checksum_of(data))
