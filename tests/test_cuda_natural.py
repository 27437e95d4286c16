"""The CUDA kernels of natural compression, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.cuda import natural
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import natural as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)
from sum_cases import COUNTS, any_bytes, counts, dtypes, weights

pytestmark = on_emulated_cuda

SPAN = 8192  # elements of a block of threads
NOISE = Noise(1, 2, 3, 4)
STARTS = (0, 1, 2, 1023, 1024, 1025, 5000, 2**32 - 3, 2**40 + 511)
noises = st.builds(
    Noise,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.just(1),
    st.sampled_from(STARTS),
)


def payload_of(n: int) -> tuple[Any, Any]:
    return poisoned(n, np.uint8), poisoned((n + 7) // 8, np.uint8)


def assert_quantize_equals_reference(
    x: np.ndarray, noise: Noise, residual: F32 | None = None, scale: float = 1.0
) -> None:
    ours, specified = (None if residual is None else residual.copy() for _ in range(2))
    payload, due = payload_of(x.size), payload_of(x.size)
    natural.natural_quantize(x, *payload, noise=noise, residual=ours, scale=scale)
    with np.errstate(all="ignore"):
        reference.natural_quantize(x, *due, noise=noise, residual=specified, scale=scale)
    assert same_bits(payload[0], due[0])
    assert same_bits(payload[1], due[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@settings(max_examples=60)
@given(
    gradients(sizes=(*SIZES, 1024, 2500, SPAN + 9)),
    st.sampled_from(KINDS),
    noises,
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_quantize_equals_reference(
    x: F32, kind: str, noise: Noise, seed: int | None, scale: float
) -> None:
    assert_quantize_equals_reference(as_kind(x, kind), noise, residual_for(x, seed), scale)


@pytest.mark.parametrize("seed", range(3))
def test_more_spans_than_blocks_of_threads_in_any_order(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(18 * SPAN + 1029).astype(np.float32)
    with running_on(Emulated(seed)):
        assert_quantize_equals_reference(x, NOISE._replace(start=4711 * seed))


def test_exponents_at_both_ends_round_as_the_reference_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    ends = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7EFFFFFF, 0x7F7FFFFF, 0x7F800000], np.uint32)
    both = np.concatenate([bits, ends, ends | np.uint32(1 << 31)]).view(np.float32)
    assert_quantize_equals_reference(both, NOISE)


@pytest.mark.parametrize("n", [0, 1, 7, 9, 1024, 1025, 3001, 2 * SPAN + 5, 140_003])
@pytest.mark.parametrize("add", [False, True])
def test_dequantize_of_any_bytes_equals_reference(n: int, add: bool) -> None:
    random = np.random.default_rng(n)
    exponents = random.integers(0, 256, n, dtype=np.uint8)
    signs = random.integers(0, 256, (n + 7) // 8, dtype=np.uint8)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    natural.natural_dequantize(exponents, signs, ours, weight=0.3, add=add)
    with np.errstate(all="ignore"):
        reference.natural_dequantize(exponents, signs, specified, weight=0.3, add=add)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("n", [5, 1030, 2048])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(n: int, shift: int) -> None:
    whole = np.random.default_rng(n).standard_normal(n + 2 * shift).astype(np.float32)
    inner, x = slice(shift, -shift), whole[shift:-shift]
    exponents = poisoned(whole.size, np.uint8)
    signs = poisoned((n + 7) // 8 + 2 * shift, np.uint8)
    untouched, left, wide = signs.copy(), whole.copy(), whole.copy()
    due, specified, decoded = payload_of(n), x.copy(), x.copy()
    natural.natural_quantize(x, exponents[inner], signs[inner], noise=NOISE, residual=left[inner])
    reference.natural_quantize(x, *due, noise=NOISE, residual=specified)
    natural.natural_dequantize(exponents[inner], signs[inner], wide[inner])
    reference.natural_dequantize(*due, decoded)
    assert same_bits(exponents[inner], due[0])
    assert same_bits(signs[inner], due[1])
    assert same_bits(left[inner], specified)
    assert same_bits(wide[inner], decoded)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(exponents[edge], untouched[edge])
        assert same_bits(signs[edge], untouched[edge])
        assert same_bits(left[edge], whole[edge])
        assert same_bits(wide[edge], whole[edge])


def assert_sum_equals_reference(n: int, count: int, dtype: Any, weight: float, seed: int) -> None:
    random, shift = np.random.default_rng(seed), seed % 4
    exponents = [any_bytes(random, n, shift) for _ in range(count)]
    signs = [any_bytes(random, (n + 7) // 8, shift) for _ in range(count)]
    whole, specified = poisoned(n + 2 * shift, dtype), poisoned(n + 2 * shift, dtype)
    place = slice(shift, shift + n)
    natural.sum_natural(exponents, signs, whole[place], weight=weight)
    with np.errstate(all="ignore"):
        reference.sum_natural(exponents, signs, specified[place], weight=weight)
    assert same_bits(whole, specified)


@settings(max_examples=60)
@given(
    st.sampled_from((0, 1, 9, 257, 1024, 1033, 2500)),
    counts,
    dtypes,
    weights,
    st.integers(0, 99),
)
def test_sum_equals_reference(n: int, count: int, dtype: Any, weight: float, seed: int) -> None:
    assert_sum_equals_reference(n, count, dtype, weight, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_groups_than_warps_in_any_order(count: int, dtype: Any) -> None:
    with running_on(Emulated(count)):
        assert_sum_equals_reference(140_003, count, dtype, 0.3, count)
