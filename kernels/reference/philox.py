"""Philox4x32 in NumPy; see :mod:`compressa.kernels.philox`."""

from __future__ import annotations

import numpy as np

from .._arrays import U32, U64
from ..philox import ROUNDS, ROW, Noise

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox4x32(
    counter: tuple[U64, U64, U64, U64], key: tuple[int, int], rounds: int = ROUNDS
) -> tuple[U64, U64, U64, U64]:
    """The bijection itself: words below 2**32, held in uint64, element by element.

    Args:
        counter: Four uint64 arrays of one shape.
        key: Two integers below 2**32.
        rounds: How often to mix.

    Returns:
        Four uint64 arrays with the words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (second >> _SHIFT) ^ c1 ^ np.uint64(k0), (first >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _WORD, first & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) % 2**32, (k1 + _KEY_STEPS[1]) % 2**32
    return c0, c1, c2, c3


def _words_of(
    block: U64, *, seed: int, stream: int, step: int, parameter: int
) -> tuple[U64, U64, U64, U64]:
    """The four words of each block of a stream."""
    fixed = [np.full_like(block, number % 2**32) for number in (step, parameter)]
    counter = block & _WORD, block >> _SHIFT, fixed[0], fixed[1]
    return philox4x32(counter, (seed % 2**32, stream % 2**32))


def random_words(
    out: U32, *, seed: int, stream: int, step: int, parameter: int, start: int = 0
) -> None:
    """See :func:`compressa.kernels.philox.random_words`."""
    element = np.uint64(start) + np.arange(out.size, dtype=np.uint64)
    block = element >> np.uint64(2)
    words = np.array(_words_of(block, seed=seed, stream=stream, step=step, parameter=parameter))
    out[:] = np.take_along_axis(words, (element & np.uint64(3)).astype(np.int64)[None], 0)[0]


def random_fractions(out: U32, noise: Noise) -> None:
    """See :func:`compressa.kernels.philox.random_fractions`."""
    key = noise._asdict()
    element = np.uint64(key.pop("start")) + np.arange(out.size, dtype=np.uint64)
    row, place = np.divmod(element, np.uint64(ROW))
    part, column = np.divmod(place, np.uint64(ROW // 8))
    words = np.array(_words_of(row * np.uint64(ROW // 8) + column, **key))
    words = np.take_along_axis(words, (part // np.uint64(2)).astype(np.int64)[None], 0)[0]
    shift = np.uint64(9) * (part % np.uint64(2))
    out[:] = (words >> shift) & np.uint64(0x7FFFFF)
