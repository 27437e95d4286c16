"""The CUDA kernels of scaled signs, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import block_count, sign_bytes
from compressa.kernels.cuda import onebit
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import onebit as reference
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
from sum_cases import COUNTS, any_bytes, any_units, counts, dtypes, weights

pytestmark = on_emulated_cuda

BLOCKS = (8, 24, 64, 256, 1024, 1032)


def payload_of(n: int, block: int) -> tuple[Any, Any]:
    return poisoned(sign_bytes(n, block), np.uint8), poisoned(block_count(n, block), np.float32)


def assert_quantize_equals_reference(
    x: np.ndarray, block: int, residual: F32 | None = None, scale: float = 1.0
) -> None:
    ours, specified = (None if residual is None else residual.copy() for _ in range(2))
    payload, due = payload_of(x.size, block), payload_of(x.size, block)
    onebit.sign_quantize(x, *payload, block=block, residual=ours, scale=scale)
    with np.errstate(all="ignore"):
        reference.sign_quantize(x, *due, block=block, residual=specified, scale=scale)
    assert same_bits(payload[0], due[0])
    assert same_bits(payload[1], due[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@given(
    gradients(sizes=(*SIZES, 2500)),
    st.sampled_from(KINDS),
    st.sampled_from(BLOCKS),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_quantize_equals_reference(
    x: F32, kind: str, block: int, seed: int | None, scale: float
) -> None:
    assert_quantize_equals_reference(as_kind(x, kind), block, residual_for(x, seed), scale)


@pytest.mark.parametrize("block", [8, 1024, 1032])
@pytest.mark.parametrize("feedback", [False, True])
def test_more_blocks_than_teams_in_any_order(block: int, feedback: bool) -> None:
    n = 140_003 if block == 1024 else 20_003
    x = np.random.default_rng(block).standard_normal(n).astype(np.float32)
    for seed in range(3):
        with running_on(Emulated(seed)):
            assert_quantize_equals_reference(x, block, x[::-1].copy() if feedback else None)


@pytest.mark.parametrize("n", [8192, 8193, 16_384, 30_011])
@pytest.mark.parametrize("feedback", [False, True])
def test_blocks_that_shared_memory_does_not_hold(n: int, feedback: bool) -> None:
    random = np.random.default_rng(n)
    x = (random.standard_normal(n) * 10.0 ** random.integers(-20, 20, n)).astype(np.float32)
    for seed in range(3):
        with running_on(Emulated(seed)):
            assert_quantize_equals_reference(x, 1 << 16, x[::-1].copy() if feedback else None)
            assert_quantize_equals_reference(x, 8200, x[::-1].copy() if feedback else None)


@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.integers(0, 99),
    st.sampled_from(BLOCKS),
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, block: int, weight: float, add: bool
) -> None:
    random = np.random.default_rng(seed)
    bits, scales = payload_of(n, block)
    bits[:] = random.integers(0, 256, bits.size, dtype=np.uint8)
    scales[:] = random.integers(0, 2**32, scales.size, dtype=np.uint32).view(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    onebit.sign_dequantize(bits, scales, ours, block=block, weight=weight, add=add)
    with np.errstate(all="ignore"):
        reference.sign_dequantize(bits, scales, specified, block=block, weight=weight, add=add)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("block", [64, 1032])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, shift: int
) -> None:
    whole = np.random.default_rng(block).standard_normal(2100 + 2 * shift).astype(np.float32)
    inner, x = slice(shift, -shift), whole[shift:-shift]
    bits = poisoned(sign_bytes(x.size, block) + 2 * shift, np.uint8)
    scales, due = payload_of(x.size, block)[1], payload_of(x.size, block)
    untouched, left, wide = bits.copy(), whole.copy(), whole.copy()
    specified, decoded = x.copy(), x.copy()
    onebit.sign_quantize(x, bits[inner], scales, block=block, residual=left[inner])
    reference.sign_quantize(x, *due, block=block, residual=specified)
    onebit.sign_dequantize(bits[inner], scales, wide[inner], block=block)
    reference.sign_dequantize(*due, decoded, block=block)
    assert same_bits(bits[inner], due[0])
    assert same_bits(left[inner], specified)
    assert same_bits(wide[inner], decoded)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(bits[edge], untouched[edge])
        assert same_bits(left[edge], whole[edge])
        assert same_bits(wide[edge], whole[edge])


def assert_sum_equals_reference(
    n: int, block: int, count: int, dtype: Any, weight: float, seed: int
) -> None:
    random, shift = np.random.default_rng(seed), seed % 4
    bits = [any_bytes(random, sign_bytes(n, block), shift) for _ in range(count)]
    scales = [any_units(random, block_count(n, block), shift) for _ in range(count)]
    whole, specified = poisoned(n + 2 * shift, dtype), poisoned(n + 2 * shift, dtype)
    place = slice(shift, shift + n)
    onebit.sum_signs(bits, scales, whole[place], block=block, weight=weight)
    with np.errstate(all="ignore"):
        reference.sum_signs(bits, scales, specified[place], block=block, weight=weight)
    assert same_bits(whole, specified)


@settings(max_examples=60)
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.sampled_from(BLOCKS),
    counts,
    dtypes,
    weights,
    st.integers(0, 99),
)
def test_sum_equals_reference(
    n: int, block: int, count: int, dtype: Any, weight: float, seed: int
) -> None:
    assert_sum_equals_reference(n, block, count, dtype, weight, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_blocks_than_teams_in_any_order(count: int, dtype: Any) -> None:
    for seed, block in enumerate((64, 1032)):
        with running_on(Emulated(seed)):
            assert_sum_equals_reference(40_001, block, count, dtype, 0.3, seed)
