"""The CUDA kernels that draw random numbers, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.cuda import philox
from compressa.kernels.reference import philox as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

pytestmark = on_emulated_cuda

SIZES = st.sampled_from((0, 1, 2, 3, 4, 5, 7, 31, 127, 129, 255, 257, 1021, 1024, 2053))
FAR = 2**63 - 2**15 - 3000
starts = st.integers(0, 9) | st.integers(0, 5000) | st.integers(2**32 - 9, 2**32 + 9) | st.just(FAR)
noises = st.builds(
    Noise,
    seed=st.integers(0, 2**40),
    stream=st.integers(0, 2**33),
    step=st.integers(0, 2**40),
    parameter=st.integers(0, 2**33),
    start=starts,
)
NOISE = Noise(seed=1, stream=2, step=3, parameter=4)


@given(SIZES, noises)
def test_words_equal_reference(n: int, noise: Noise) -> None:
    ours, due = poisoned(n, np.uint32), poisoned(n, np.uint32)
    philox.random_words(ours, **noise._asdict())
    reference.random_words(due, **noise._asdict())
    assert same_bits(ours, due)


@given(SIZES, noises)
def test_fractions_equal_reference(n: int, noise: Noise) -> None:
    ours, due = poisoned(n, np.uint32), poisoned(n, np.uint32)
    philox.random_fractions(ours, noise)
    reference.random_fractions(due, noise)
    assert same_bits(ours, due)


@pytest.mark.parametrize("start", [0, 3, 1024])
def test_threads_take_more_than_one_turn(start: int) -> None:
    n, noise = 150_001, NOISE._replace(start=start)
    words, due_words = poisoned(n, np.uint32), poisoned(n, np.uint32)
    fractions, due_fractions = poisoned(n, np.uint32), poisoned(n, np.uint32)
    philox.random_words(words, **noise._asdict())
    philox.random_fractions(fractions, noise)
    reference.random_words(due_words, **noise._asdict())
    reference.random_fractions(due_fractions, noise)
    assert same_bits(words, due_words)
    assert same_bits(fractions, due_fractions)


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_addresses_may_be_odd_and_nothing_beside_the_array_is_written(
    shift: int, start: int
) -> None:
    noise, n = NOISE._replace(start=start), 1500
    words, fractions = poisoned(n + 2 * shift, np.uint32), poisoned(n + 2 * shift, np.uint32)
    due_words, due_fractions = words.copy(), fractions.copy()
    philox.random_words(words[shift:-shift], **noise._asdict())
    philox.random_fractions(fractions[shift:-shift], noise)
    reference.random_words(due_words[shift:-shift], **noise._asdict())
    reference.random_fractions(due_fractions[shift:-shift], noise)
    assert same_bits(words, due_words)
    assert same_bits(fractions, due_fractions)
