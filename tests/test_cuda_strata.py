"""The CUDA kernels of stratified sampling, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels.cuda import strata
from compressa.kernels.reference import strata as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import SIZES, poisoned, same_bits

pytestmark = on_emulated_cuda

dtypes = st.sampled_from((np.uint32, np.int64))


@st.composite
def draws(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    k, seed = draw(st.sampled_from((*SIZES, 16_381, 20_000))), draw(st.integers(0, 99))
    n = draw(st.integers(k, 3 * k + 90) | st.sampled_from((2**31, 2**32 - 1, 2**32)))
    words = np.random.default_rng(seed).integers(0, 2**32, k, dtype=np.uint32)
    words[: k // 3] = draw(st.sampled_from((0, 2**32 - 1)))
    return n, words


@given(draws(), dtypes)
def test_stratified_indices_equal_reference(case: tuple[int, np.ndarray], dtype: type) -> None:
    n, words = case
    ours, specified = poisoned(words.size, dtype), poisoned(words.size, dtype)
    strata.stratified_indices(ours, n, words)
    reference.stratified_indices(specified, n, words)
    assert same_bits(ours, specified)


@given(draws(), st.sampled_from((0, 2**40, 2**48)))
def test_multiply_by_strata_equals_reference(case: tuple[int, np.ndarray], more: int) -> None:
    n, words = case
    ours = words.view(np.float32).copy()  # any bits
    specified = ours.copy()
    strata.multiply_by_strata(ours, n + more)
    with np.errstate(all="ignore"):
        reference.multiply_by_strata(specified, n + more)
    assert same_bits(ours, specified)


def test_the_largest_n_times_k() -> None:
    for k, n in ((1, 2**63 - 1), (2**15, 2**48 - 1), (7, (2**63 - 1) // 7)):
        ours = np.full(k, 0.1, np.float32)
        specified = ours.copy()
        strata.multiply_by_strata(ours, n)
        reference.multiply_by_strata(specified, n)
        assert same_bits(ours, specified)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: type, shift: int
) -> None:
    inner, k, n = slice(shift, -shift), 3000, 100_003
    whole = np.random.default_rng(1).integers(0, 2**32, k + 2 * shift, dtype=np.uint32)
    ours, values = poisoned(whole.size, dtype), np.full(whole.size, 0.1, np.float32)
    due, due_values = ours.copy(), values.copy()
    for module, out, scaled in ((strata, ours, values), (reference, due, due_values)):
        module.stratified_indices(out[inner], n, whole[inner])
        module.multiply_by_strata(scaled[inner], n)
    assert same_bits(ours, due)
    assert same_bits(values, due_values)
