from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels import block_count, code_bytes, dequantize_blockwise, quantize_blockwise
from compressa.kernels.reference import blockwise as reference
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

bits_and_block = st.sampled_from([(b, n) for b in (4, 8) for n in (8, 10, 64, 256)])
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-25, 1e-3, 1.0, 1e25))


def quantized(
    function: object, x: F32, bits: int, block: int, residual: F32 | None, scale: float = 1.0
) -> tuple[np.ndarray, F32]:
    codes = poisoned(code_bytes(x.size, bits, block), np.uint8)
    scales = poisoned(block_count(x.size, block), np.float32)
    function(  # type: ignore[operator]
        x, codes, scales, bits=bits, block=block, residual=residual, scale=scale
    )
    return codes, scales


def decoded(codes: np.ndarray, scales: F32, n: int, bits: int, block: int) -> F32:
    out = poisoned(n, np.float32)
    dequantize_blockwise(codes, scales, out, bits=bits, block=block)
    return out


@given(gradients(), bits_and_block, feedback)
def test_quantize_equals_reference(
    x: F32, form: tuple[int, int], keep: tuple[int | None, float]
) -> None:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    codes, scales = quantized(quantize_blockwise, x, *form, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = quantized(reference.quantize_blockwise, x, *form, specified, keep[1])
    assert same_bits(codes, expected[0])
    assert same_bits(scales, expected[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@given(
    st.sampled_from((0, 1, 9, 64, 257)),
    st.integers(0, 99),
    bits_and_block,
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, form: tuple[int, int], weight: float, add: bool
) -> None:
    random, (bits, block) = np.random.default_rng(seed), form
    codes = random.integers(0, 256, code_bytes(n, *form), dtype=np.uint8)
    scales = random.integers(0, 2**32, block_count(n, block), dtype=np.uint32).view(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    options = {"bits": bits, "block": block, "weight": weight, "add": add}
    dequantize_blockwise(codes, scales, ours, **options)
    with np.errstate(all="ignore"):
        reference.dequantize_blockwise(codes, scales, specified, **options)
    assert same_bits(ours, specified)


@given(moderate, bits_and_block)
def test_error_is_at_most_half_a_unit(x: F32, form: tuple[int, int]) -> None:
    codes, scales = quantized(quantize_blockwise, x, *form, None)
    levels = 2 ** (form[0] - 1) - 1
    unit = block_max(x, form[1]) / levels
    error = np.abs(decoded(codes, scales, x.size, *form).astype(np.float64) - x)
    assert (error <= unit * (0.5 + levels * 2.0**-22)).all()


@given(moderate, bits_and_block, st.integers(0, 99), st.sampled_from((1.0, 1024.0)))
def test_nothing_is_lost(x: F32, form: tuple[int, int], seed: int, scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(scale)
    p = x + np.float32(scale) * residual
    codes, scales = quantized(quantize_blockwise, x, *form, residual, scale)
    total = decoded(codes, scales, x.size, *form).astype(np.float64) + scale * residual
    assert (np.abs(total - p) <= 2.0**-23 * block_max(p, form[1]) + 1e-38).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_block_only(bits: int, bad: float) -> None:
    x, residual = np.ones(24, np.float32), np.full(24, 0.01, np.float32)
    x[9] = bad
    codes, scales = quantized(quantize_blockwise, x, bits, 8, residual)
    out = decoded(codes, scales, 24, bits, 8)
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(np.delete(out, range(8, 16))).all()
    assert (residual[8:16] == np.float32(0.01)).all()
    assert (np.abs(np.delete(residual, range(8, 16))) < 1e-6).all()


def test_sum_that_overflows_counts_as_overflow() -> None:
    x, residual = np.full(8, 3e38, np.float32), np.full(8, 3e38, np.float32)
    _, scales = quantized(quantize_blockwise, x, 8, 8, residual)
    assert np.isnan(scales).all()
    assert (residual == np.float32(3e38)).all()


def test_smallest_numbers_survive() -> None:
    x = np.array([1e-45, -1e-45, 0, 0, 0, 0, 0, 0], np.float32)
    codes, scales = quantized(quantize_blockwise, x, 8, 8, None)
    assert same_bits(decoded(codes, scales, 8, 8, 8), x)


def test_golden_bytes() -> None:
    x = np.array([7, -7, 3.5, 0, 1, 2.5, -1.5, 0.4, 7, -1, 6], np.float32)
    codes, scales = quantized(quantize_blockwise, x, 4, 8, None)
    # 3.5 -> 4, 2.5 -> 2, -1.5 -> -2: half to even. Planar: 7|1, -7|2, 4|-2, 0|0; 7|6, -1|none
    assert codes.tobytes() == bytes([0x9F, 0xA1, 0x6C, 0x88, 0xEF, 0x87])
    assert scales.tolist() == [1.0, 1.0]
    codes, scales = quantized(quantize_blockwise, np.float32(127) * x[:2] / 7, 8, 8, None)
    assert codes.tobytes() == bytes([127, 256 - 127])


@pytest.mark.parametrize("bits", [4, 8])
def test_slices_in_threads_give_the_bits_of_the_whole(bits: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal(64 * 40 + 13).astype(np.float32)
    whole, sliced = np.zeros_like(x), np.zeros_like(x)
    codes, scales = quantized(quantize_blockwise, x, bits, 64, whole)
    parts = [slice(i, min(i + 64 * 7, x.size)) for i in range(0, x.size, 64 * 7)]
    with ThreadPoolExecutor(3) as pool:
        results = list(
            pool.map(lambda at: quantized(quantize_blockwise, x[at], bits, 64, sliced[at]), parts)
        )
    assert same_bits(codes, np.concatenate([result[0] for result in results]))
    assert same_bits(scales, np.concatenate([result[1] for result in results]))
    assert same_bits(whole, sliced)


@pytest.mark.parametrize(("bits", "block"), [(2, 64), (16, 64), (8, 7), (8, 6), (4, 0)])
def test_refuses_other_forms(bits: int, block: int) -> None:
    with pytest.raises(ValueError, match=r"bits|block"):
        code_bytes(10, bits, block)


def test_four_bits_take_half_a_byte() -> None:
    assert [code_bytes(n, 4, 8) for n in (0, 1, 8, 9, 16)] == [0, 1, 4, 5, 8]
