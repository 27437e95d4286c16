from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import random_words, stratified_indices
from compressa.kernels.reference import strata as reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits


@st.composite
def draws(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    k = draw(st.integers(0, 40))
    n = draw(st.integers(k, 90) | st.sampled_from((2**31, 2**32 - 1, 2**32)))
    words = draw(st.lists(st.integers(0, 2**32 - 1), min_size=k, max_size=k))
    return n, np.array(words, np.uint32)


@given(draws(), st.sampled_from((np.uint32, np.int64)))
def test_equals_reference_and_has_one_index_per_stratum(
    case: tuple[int, np.ndarray], dtype: type
) -> None:
    n, words = case
    ours, specified = poisoned(words.size, dtype), poisoned(words.size, dtype)
    stratified_indices(ours, n, words)
    reference.stratified_indices(specified, n, words)
    assert same_bits(ours, specified)
    for i, index in enumerate(ours.tolist()):
        assert i * n // words.size <= index < (i + 1) * n // words.size


def test_every_element_is_equally_likely() -> None:
    counts, words, out = np.zeros(12), poisoned(4, np.uint32), poisoned(4, np.int64)
    for step in range(3000):
        random_words(words, seed=1, stream=0, step=step, parameter=0)
        stratified_indices(out, 12, words)
        counts[out] += 1
    assert (np.abs(counts - 1000) < 130).all()  # five deviations of a binomial


@pytest.mark.parametrize("n", [3, 2**32 + 1])
def test_refuses_n_out_of_range(n: int) -> None:
    with pytest.raises(ValueError, match="n must"):
        stratified_indices(np.empty(4, np.int64), n, np.empty(4, np.uint32))


def test_refuses_other_dtypes() -> None:
    with pytest.raises(TypeError, match="out must be uint32"):
        stratified_indices(np.empty(4, np.int32), 9, np.empty(4, np.uint32))
