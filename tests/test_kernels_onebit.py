from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from compressa.kernels import (
    block_count,
    sign_bytes,
    sign_dequantize,
    sign_quantize,
    sum_signs,
)
from compressa.kernels.reference import onebit as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    SCALES,
    block_max,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)
from sum_cases import any_bytes, any_units, counts, dtypes, one_by_one, weights

blocks = st.sampled_from((8, 24, 64, 256, 1024))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-10, 1.0, 1e10))


def quantized(
    function: object, x: F32, block: int, residual: F32 | None, scale: float = 1.0
) -> tuple[np.ndarray, F32]:
    bits = poisoned(sign_bytes(x.size, block), np.uint8)
    scales = poisoned(block_count(x.size, block), np.float32)
    function(x, bits, scales, block=block, residual=residual, scale=scale)  # type: ignore[operator]
    return bits, scales


def decoded(bits: np.ndarray, scales: F32, n: int, block: int) -> F32:
    out = poisoned(n, np.float32)
    sign_dequantize(bits, scales, out, block=block)
    return out


@given(gradients(), blocks, feedback)
def test_quantize_equals_reference(x: F32, block: int, keep: tuple[int | None, float]) -> None:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    bits, scales = quantized(sign_quantize, x, block, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = quantized(reference.sign_quantize, x, block, specified, keep[1])
    assert same_bits(bits, expected[0])
    assert same_bits(scales, expected[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@given(
    st.sampled_from((0, 1, 9, 64, 257)),
    st.integers(0, 99),
    blocks,
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, block: int, weight: float, add: bool
) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 256, sign_bytes(n, block), dtype=np.uint8)
    scales = random.integers(0, 2**32, block_count(n, block), dtype=np.uint32).view(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    sign_dequantize(bits, scales, ours, block=block, weight=weight, add=add)
    with np.errstate(all="ignore"):
        reference.sign_dequantize(bits, scales, specified, block=block, weight=weight, add=add)
    assert same_bits(ours, specified)


@given(moderate, blocks)
def test_decode_is_the_mean_magnitude_with_each_sign(x: F32, block: int) -> None:
    out = decoded(*quantized(sign_quantize, x, block, None), x.size, block)
    assert ((out < 0) == ((x < 0) & (out != 0))).all()
    for i in range(0, x.size, block):
        mean = np.abs(x[i : i + block].astype(np.float64)).mean()
        np.testing.assert_allclose(np.abs(out[i : i + block]), mean, rtol=2.0**-23)


@given(moderate)
def test_is_a_contraction_with_exactly_the_stated_constant(x: F32) -> None:
    block = 8 * max(1, -(-x.size // 8))
    out = decoded(*quantized(sign_quantize, x, block, None), x.size, block).astype(np.float64)
    squares = float((x.astype(np.float64) ** 2).sum())
    magnitudes = float(np.abs(x.astype(np.float64)).sum())
    kept = magnitudes**2 / max(x.size, 1)
    assert float(((out - x) ** 2).sum()) == pytest.approx(squares - kept, abs=1e-6 * squares)


@given(moderate, blocks, st.integers(0, 99), st.sampled_from((1.0, 1024.0)))
def test_nothing_is_lost(x: F32, block: int, seed: int, scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(scale)
    p = x + np.float32(scale) * residual
    out = decoded(*quantized(sign_quantize, x, block, residual, scale), x.size, block)
    total = out.astype(np.float64) + scale * residual
    assert (np.abs(total - p) <= 2.0**-22 * block_max(p, block) + 1e-38).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_block_only(bad: float) -> None:
    x, residual = np.ones(24, np.float32), np.full(24, 0.01, np.float32)
    x[9] = bad
    out = decoded(*quantized(sign_quantize, x, 8, residual), 24, 8)
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(np.delete(out, range(8, 16))).all()
    assert (residual[8:16] == np.float32(0.01)).all()
    assert (np.abs(np.delete(residual, range(8, 16))) < 1e-6).all()


def test_largest_numbers_do_not_overflow() -> None:
    x = np.full(64, np.finfo(np.float32).max)
    _, scales = quantized(sign_quantize, x, 64, None)
    assert scales.tolist() == [x[0]]


def test_golden_bytes() -> None:
    x = np.array([1, -1, 1, 1, -1, 1, -1, -0.0, 2, 2, -2], np.float32)
    bits, scales = quantized(sign_quantize, x, 8, None)
    # the first block has one element per plane; so has the second, of 3
    assert bits.tobytes() == bytes([0b01010010, 0b100])
    assert scales.tolist() == [0.875, 2.0]
    bits, _ = quantized(sign_quantize, x, 16, None)
    # planes of 2: elements 0 1, 2 3, 4 5, 6 7, 8 9, 10
    assert bits.tobytes() == bytes([0b101100, 0b000001])


@pytest.mark.parametrize("block", [0, 4, 12, -8])
def test_refuses_blocks_that_do_not_fill_bytes(block: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        sign_bytes(10, block)


def payloads(n: int, block: int, count: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    bits = [any_bytes(random, sign_bytes(n, block), seed % 4) for _ in range(count)]
    return bits, [any_units(random, block_count(n, block)) for _ in range(count)]


@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500, 20_003)),
    counts,
    st.sampled_from((8, 24, 256, 1024, 1 << 16)),
    weights,
    dtypes,
    st.integers(0, 99),
)
def test_sum_is_that_of_one_payload_after_the_other(
    n: int, count: int, block: int, weight: float, dtype: Any, seed: int
) -> None:
    bits, scales = payloads(n, block, count, seed)

    def add(i: int, total: F32) -> None:
        sign_dequantize(bits[i], scales[i], total, block=block, weight=weight, add=True)

    due = one_by_one(add, count, n, dtype)
    for function in (sum_signs, reference.sum_signs):
        out = poisoned(n, dtype)
        with np.errstate(all="ignore"):
            function(bits, scales, out, block=block, weight=weight)
        assert same_bits(out, due)


def test_sums_in_threads_are_those_of_the_whole() -> None:
    n = (1 << 20) + 13
    bits, scales = payloads(n, 1024, 3, 0)
    whole, threaded = poisoned(n, np.float32), poisoned(n, np.float32)
    sum_signs(bits, scales, whole, block=1024)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        sum_signs(bits, scales, threaded, block=1024)
    assert same_bits(whole, threaded)


def test_sums_of_unfit_payloads_are_refused() -> None:
    bits, scales = payloads(16, 8, 2, 0)
    out = poisoned(16, np.float32)
    with pytest.raises(ValueError, match=r"bits must have shape \(2,\)"):
        sum_signs([bits[0], bits[1][:1]], scales, out, block=8)
    with pytest.raises(ValueError, match=r"scales must have shape \(2,\)"):
        sum_signs(bits, [scales[0], scales[1][:1]], out, block=8)
    with pytest.raises(ValueError, match="one of each array"):
        sum_signs(bits, scales[:1], out, block=8)
    assert same_bits(out, poisoned(16, np.float32))
