"""Checksum of NumPy arrays; see :mod:`compressa.kernels.checksums`."""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..checksums import A, B
from ._bytes import load_word
from ._jit import jit

_A, _B = np.uint64(A), np.uint64(B)
_NOTHING = np.empty(0, np.uint8)


@jit
def _mixed(word: np.uint64, place: int) -> np.uint64:
    m = word + np.uint64(place) * _A
    m = (m ^ (m >> np.uint64(32))) * _B
    return m ^ (m >> np.uint64(29))


@jit
def sum_of_words(data: U8, place: int) -> np.uint64:
    """Sum up the mixed words of ``data``, the first of which has this place."""
    words, total = data.size // 8, np.uint64(0)
    for i in range(words):
        total += _mixed(load_word(data, 8 * i), place + i)
    if data.size % 8:
        last = np.uint64(0)
        for b in range(8 * words, data.size):
            last |= np.uint64(data[b]) << np.uint64(8 * (b - 8 * words))
        total += _mixed(last, place + words)
    return total


@jit
def sum_of_parts(head: U8, data: U8) -> np.uint64:
    """Return the checksum of ``head``, which has whole words, with ``data`` behind it."""
    total = np.uint64(head.size + data.size)
    return total + sum_of_words(head, 0) + sum_of_words(data, head.size // 8)


def checksum(data: U8, head: U8 | None = None) -> int:
    """See :func:`compressa.kernels.checksums.checksum`."""
    return int(sum_of_parts(_NOTHING if head is None else head, data))
