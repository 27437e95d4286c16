"""Philox4x32-7 for NumPy arrays; see :mod:`compressa.kernels.philox`."""

from __future__ import annotations

import numpy as np

from .._arrays import U32, U64
from ..philox import Noise
from ._jit import jit
from ._noise import drawn_at, four_words, noise_buffer, noise_key


@jit
def _whole_blocks(
    out: U32, first: np.uint64, step: np.uint64, parameter: np.uint64, key: U64
) -> None:
    for i in range(out.size // 4):
        words = four_words(first + np.uint64(i), step, parameter, key[0], key[1])
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
        words = four_words(element >> np.uint64(2), step, parameter, key[0], key[1])
        out[i] = words[np.int64(element & np.uint64(3))]


def random_words(
    out: U32, *, seed: int, stream: int, step: int, parameter: int, start: int = 0
) -> None:
    key = np.array([seed % 2**32, stream % 2**32], np.uint64)
    counter = np.uint64(step % 2**32), np.uint64(parameter % 2**32)
    head = min(-start % 4, out.size)
    tail = head + (out.size - head) // 4 * 4
    _single_words(out[:head], np.uint64(start), *counter, key)
    _whole_blocks(out[head:tail], np.uint64((start + head) // 4), *counter, key)
    _single_words(out[tail:], np.uint64(start + tail), *counter, key)


def random_fractions(out: U32, noise: Noise) -> None:
    buffer = noise_buffer(noise, out.size)
    assert buffer is not None
    at = drawn_at(noise_key(noise, 0), 0, out.size, buffer)
    out[:] = buffer[at : at + out.size]
