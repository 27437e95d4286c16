from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import random_words
from compressa.kernels.philox import Noise, philox4x32, random_fractions
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

# From Random123's kat_vectors: rounds, counter, key, words.
ZEROS, ONES = "00000000 " * 4, "ffffffff " * 4
PI = "243f6a88 85a308d3 13198a2e 03707344"
KNOWN_ANSWERS = [
    (7, ZEROS, "00000000 00000000", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, ONES, "ffffffff ffffffff", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, PI, "a4093822 299f31d0", "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, ZEROS, "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, ONES, "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, PI, "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("rounds", "counter", "key", "answer"), KNOWN_ANSWERS)
def test_reference_gives_the_published_answers(
    rounds: int, counter: str, key: str, answer: str
) -> None:
    c = [np.array([word], np.uint64) for word in words(counter)]
    k = words(key)
    result = philox4x32((c[0], c[1], c[2], c[3]), (k[0], k[1]), rounds)
    assert [int(word[0]) for word in result] == words(answer)


def test_public_function_gives_the_published_answer_for_seven_rounds() -> None:
    out = poisoned(4, np.uint32)
    c, k = words(PI), words("a4093822 299f31d0")
    start = 4 * (c[0] + ((c[1] & 0x1FFFFFFF) << 32))
    random_words(out, seed=k[0], stream=k[1], step=c[2], parameter=c[3], start=start)
    low = [np.array([word], np.uint64) for word in (c[0], c[1] & 0x1FFFFFFF, c[2], c[3])]
    expected = philox4x32((low[0], low[1], low[2], low[3]), (k[0], k[1]))
    assert out.tolist() == [int(word[0]) for word in expected]


FAR = 2**63 - 2**15 - 3000
EDGES = st.integers(2**32 - 9, 2**32 + 9) | st.just(FAR)
sizes = st.integers(0, 70) | st.sampled_from((127, 129, 255, 257, 1021, 1024, 2053, 3000))
noises = st.builds(
    Noise,
    seed=st.integers(0, 2**40),
    stream=st.integers(0, 2**40),
    step=st.integers(0, 2**40),
    parameter=st.integers(0, 2**40),
    start=st.integers(0, 9) | st.integers(0, 5000) | st.integers(0, 2**40) | EDGES,
)
NOISE = Noise(seed=1, stream=2, step=3, parameter=4)


def check(n: int, noise: Noise, shift: int = 0) -> None:
    """Words and fractions, at any address."""

    def run(kernels: Any) -> list[Array]:
        all_words, words = odd(poisoned(n, np.uint32), shift)
        all_fractions, fractions = odd(poisoned(n, np.uint32), shift)
        kernels.random_words(words, **noise._asdict())
        kernels.random_fractions(fractions, noise)
        return [all_words, all_fractions]

    alike("philox", run)


@on_every_backend
@given(sizes, noises)
def test_words_and_fractions_equal_reference(n: int, noise: Noise) -> None:
    check(n, noise)


@on_every_backend
@pytest.mark.parametrize("start", [0, 3, 1024])
def test_threads_take_more_than_one_iteration(start: int) -> None:
    check(150_001, NOISE._replace(start=start))


@on_every_backend
@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_addresses_may_be_odd_and_nothing_beside_the_array_is_written(
    shift: int, start: int
) -> None:
    check(1500, NOISE._replace(start=start), shift)


@given(st.integers(0, 600), st.integers(0, 600), noises)
def test_numbers_do_not_depend_on_the_cut(first: int, second: int, noise: Noise) -> None:
    def words(out: Array, noise: Noise) -> None:
        random_words(out, **noise._asdict())

    for draw in (words, random_fractions):
        whole = poisoned(first + second, np.uint32)
        draw(whole, noise)
        parts = poisoned(first, np.uint32), poisoned(second, np.uint32)
        draw(parts[0], noise)
        draw(parts[1], noise._replace(start=noise.start + first))
        assert same_bits(whole, np.concatenate(parts))


@pytest.mark.parametrize("changed", ["seed", "stream", "step", "parameter"])
def test_every_part_of_the_key_matters(changed: str) -> None:
    key = {"seed": 1, "stream": 2, "step": 3, "parameter": 4}
    one, other = poisoned(1000, np.uint32), poisoned(1000, np.uint32)
    random_words(one, **key)
    random_words(other, **{**key, changed: 9})
    assert np.count_nonzero(one == other) <= 1


def test_is_uniform() -> None:
    out = poisoned(1 << 16, np.uint32)
    random_words(out, seed=1, stream=0, step=0, parameter=0)
    counts = np.bincount(out >> 24, minlength=256)
    chi_squared = ((counts - 256.0) ** 2 / 256.0).sum()
    assert 170 < chi_squared < 360  # 255 degrees of freedom: mean 255, deviation 22.6


@pytest.mark.parametrize("start", [-1, 2**63])
def test_refuses_a_start_out_of_range(start: int) -> None:
    with pytest.raises(ValueError, match="start"):
        random_words(np.empty(4, np.uint32), seed=0, stream=0, step=0, parameter=0, start=start)


def test_fractions_are_uniform_and_no_two_elements_share_one() -> None:
    out = poisoned(1 << 16, np.uint32)
    random_fractions(out, Noise(1, 0, 0, 0))
    assert out.max() < 1 << 23
    for bits in (out >> 15, out & 255):
        counts = np.bincount(bits, minlength=256)
        assert 170 < ((counts - 256.0) ** 2 / 256.0).sum() < 360
    correlations = [abs(np.corrcoef(out[:-lag], out[lag:])[0, 1]) for lag in (1, 2, 256, 1024)]
    assert max(correlations) < 0.02  # five deviations of 1 / sqrt(n)
