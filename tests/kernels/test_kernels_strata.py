from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import random_words, stratified_indices
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SIZES, poisoned

dtypes = st.sampled_from((np.uint32, np.int64))


@st.composite
def draws(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    k, seed = draw(st.sampled_from((*SIZES, 16_381, 20_000))), draw(st.integers(0, 99))
    n = draw(st.integers(k, 3 * k + 90) | st.sampled_from((2**31, 2**32 - 1, 2**32)))
    words = np.random.default_rng(seed).integers(0, 2**32, k, dtype=np.uint32)
    words[: k // 3] = draw(st.sampled_from((0, 2**32 - 1)))
    return n, words


def check_indices(n: int, words: Array, dtype: type, shift: int = 0) -> Array:
    def run(kernels: Any) -> list[Array]:
        whole, out = odd(poisoned(words.size, dtype), shift)
        kernels.stratified_indices(out, n, words)
        return [whole]

    whole = alike("strata", run)[0]
    return whole[shift : shift + words.size]


def check_product(n: int, values: F32, shift: int = 0) -> None:
    def run(kernels: Any) -> list[F32]:
        whole, scaled = odd(values, shift)
        kernels.multiply_by_strata(scaled, n)
        return [whole]

    alike("strata", run)


@on_every_backend
@given(draws(), dtypes)
def test_equals_reference_and_has_one_index_per_stratum(
    case: tuple[int, Array], dtype: type
) -> None:
    n, words = case
    found, k = check_indices(n, words, dtype).tolist(), words.size
    assert all(i * n // k <= index < (i + 1) * n // k for i, index in enumerate(found))


@on_every_backend
@given(draws(), st.sampled_from((0, 2**40, 2**48)))
def test_multiply_by_strata_equals_reference(case: tuple[int, Array], more: int) -> None:
    n, words = case
    check_product(n + more, words.view(np.float32))  # any bits


@on_every_backend
@pytest.mark.parametrize(("k", "n"), [(1, 2**63 - 1), (2**15, 2**48 - 1), (7, (2**63 - 1) // 7)])
def test_the_largest_n_times_k(k: int, n: int) -> None:
    check_product(n, np.full(k, 0.1, np.float32))


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: type, shift: int
) -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 3000, dtype=np.uint32)
    check_indices(100_003, odd(words, shift)[1], dtype, shift)
    check_product(100_003, np.full(3000, 0.1, np.float32), shift)


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
