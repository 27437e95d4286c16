"""The checksum: as it is written down, and blind to no change that can be searched for."""

from __future__ import annotations

import numpy as np
import pytest
from alike import Array, alike, on_every_backend
from compressa.kernels.checksums import A, B, checksum
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import SIZES

seeds = st.integers(0, 99)


def drawn(size: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def check(data: Array) -> None:
    alike("checksums", lambda kernels: [int(kernels.checksum(data))], reads=[data])


@on_every_backend
@given(st.sampled_from(SIZES), seeds, st.integers(0, 8))
def test_equals_reference_wherever_the_bytes_lie(size: int, seed: int, shift: int) -> None:
    check(drawn(size + shift, seed)[shift:])


@on_every_backend
@pytest.mark.parametrize("size", [70_001, 300_007])
def test_threads_take_more_than_one_iteration(size: int) -> None:
    check(drawn(size, 0))


def test_is_the_sum_of_mixed_words_that_is_written_down() -> None:
    wrap, data = 1 << 64, np.arange(21, dtype=np.uint8)
    total = 21
    for index in range(3):
        word = int.from_bytes(bytes(data[8 * index : 8 * index + 8]), "little")
        m = (word + index * A) % wrap
        m = (m ^ m >> 32) * B % wrap
        total += m ^ m >> 29
    assert checksum(data) == total % wrap == 12985273621825283316


@given(st.integers(1, 300), seeds, st.data())
def test_any_change_within_one_word_is_seen(size: int, seed: int, data: st.DataObject) -> None:
    before = drawn(size, seed)
    low = 8 * data.draw(st.integers(0, (size - 1) // 8))
    width = min(8, size - low)
    change = data.draw(st.binary(min_size=width, max_size=width).filter(any))
    after = before.copy()
    after[low : low + width] ^= np.frombuffer(change, np.uint8)
    assert checksum(after) != checksum(before)


@given(st.integers(2, 300), seeds)
def test_indices_and_lengths_count(words: int, seed: int) -> None:
    data = drawn(8 * words, seed)
    moved = np.roll(data, 8)
    assert np.array_equal(moved, data) or checksum(moved) != checksum(data)
    zeros = np.zeros(8 * words, np.uint8)
    assert len({checksum(zeros[:count]) for count in range(zeros.size)}) == zeros.size


def test_half_of_it_inverted_is_seen() -> None:
    for seed in range(200):
        data = drawn(1000, seed)
        other = data.copy()
        other[:500] ^= 0xFF
        assert checksum(other) != checksum(data)


def test_refuses_what_it_cannot_read() -> None:
    data = np.zeros(16, np.uint8)
    with pytest.raises(TypeError, match="data must be uint8"):
        checksum(data.view(np.int8))
    with pytest.raises(ValueError, match="contiguous"):
        checksum(data[::2])
