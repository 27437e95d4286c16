from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import block_count, onebit, sign_bytes, sign_dequantize
from compressa.kernels.cuda._work import HELD
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    block_max,
    gradients,
    kinds,
    poisoned,
    residual_for,
)

GROUP = 8192  # elements that a block of threads holds
blocks = st.sampled_from((8, 24, 64, 256, 1024, 1032))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-10, 1.0, 1e10))
Payload = tuple[np.ndarray, F32, F32 | None]


def quantized(
    kernels: Any, x: np.ndarray, block: int, residual: F32 | None = None, loss_scale: float = 1.0
) -> Payload:
    """Bits, scales, and what is left."""
    bits, left = poisoned(sign_bytes(x.size, block), np.uint8), copied(residual)
    scales = poisoned(block_count(x.size, block), np.float32)
    kernels.sign_quantize(x, bits, scales, block=block, residual=left, loss_scale=loss_scale)
    return bits, scales, left


def decoded(payload: Payload, n: int, block: int) -> F32:
    out = poisoned(n, np.float32)
    sign_dequantize(*payload[:2], out, block=block)
    return out


@on_every_backend
@settings(max_examples=166)
@given(gradients(sizes=(*SIZES, 2500)), kinds, blocks, feedback)
def test_quantize_equals_reference(
    x: F32, kind: str, block: int, keep: tuple[int | None, float]
) -> None:
    given_x, residual = as_kind(x, kind), residual_for(x, keep[0])
    alike(
        "onebit",
        lambda k: quantized(k, given_x, block, residual, keep[1]),
        reads=[given_x],
        on_cpu=kind == "float32",
    )


@on_every_backend
@pytest.mark.parametrize("block", [8, 1024, 1032])
@pytest.mark.parametrize("feedback", [False, True])
def test_more_blocks_than_teams_in_any_order(block: int, feedback: bool) -> None:
    n = 140_003 if block == 1024 else 20_003
    x = np.random.default_rng(block).standard_normal(n).astype(np.float32)
    residual = x[::-1].copy() if feedback else None
    alike("onebit", lambda k: quantized(k, x, block, residual), orders=range(3))


@on_every_backend
@pytest.mark.parametrize("block", HELD[1])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_held_in_registers_over_many_iterations(block: int, kind: str) -> None:
    x = np.random.default_rng(block).standard_normal(37 * GROUP + block + 7).astype(np.float32)
    x[block], x[2 * block] = np.inf, -0.0
    given_x, residual = as_kind(x, kind), None if kind == KINDS[-1] else residual_for(x, 1)
    alike(
        "onebit",
        lambda k: quantized(k, given_x, block, residual, 3.0),
        reads=[given_x],
        on_cpu=False,
    )


@on_every_backend
@pytest.mark.parametrize("n", [8192, 8193, 16_384, 30_011])
@pytest.mark.parametrize("block", [8200, 1 << 16])
@pytest.mark.parametrize("feedback", [False, True])
def test_blocks_that_shared_memory_does_not_hold(n: int, block: int, feedback: bool) -> None:
    random = np.random.default_rng(n)
    x = (random.standard_normal(n) * 10.0 ** random.integers(-20, 20, n)).astype(np.float32)
    residual = x[::-1].copy() if feedback else None
    alike("onebit", lambda k: quantized(k, x, block, residual), orders=range(3))


@on_every_backend
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
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
    before = random.standard_normal(n).astype(np.float32)

    def dequantized(kernels: Any) -> list[F32]:
        out = before.copy()
        kernels.sign_dequantize(bits, scales, out, block=block, weight=weight, add=add)
        return [out]

    alike("onebit", dequantized)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize(("block", "n"), [(64, 2100), (1032, 2100), (512, 8200)])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, n: int, shift: int
) -> None:
    whole = np.random.default_rng(block).standard_normal(n + 2 * shift).astype(np.float32)
    x = whole[shift:-shift]

    def there_and_back(kernels: Any) -> list[np.ndarray]:
        bits, packed = odd(poisoned(sign_bytes(x.size, block), np.uint8), shift)
        all_scales, scales = odd(poisoned(block_count(x.size, block), np.float32), shift)
        (left, residual), (wide, out) = odd(x, shift), odd(x, shift)
        kernels.sign_quantize(x, packed, scales, block=block, residual=residual)
        kernels.sign_dequantize(packed, scales, out, block=block)
        return [bits, all_scales, left, wide]

    alike("onebit", there_and_back)


@on_every_backend
@pytest.mark.parametrize("which", ["x", "residual", "bits", "out"])
def test_one_array_at_an_odd_address_is_enough_to_take_no_vectors(which: str) -> None:
    x = np.random.default_rng(5).standard_normal(GROUP + 1).astype(np.float32)
    bits, scales = poisoned(sign_bytes(x.size, 512), np.uint8), poisoned(17, np.float32)
    arrays = {"x": x, "residual": x, "bits": bits, "out": x}

    def run(kernels: Any) -> list[np.ndarray]:
        there = {name: odd(array, int(name == which)) for name, array in arrays.items()}
        given_x, left, packed, out = (part for _, part in there.values())
        kernels.sign_quantize(given_x, packed, scales, block=512, residual=left)
        kernels.sign_dequantize(packed, scales, out, block=512, add=True)
        return [scales, *(whole for whole, _ in there.values())]

    alike("onebit", run)


@given(moderate, blocks)
def test_decode_is_the_mean_magnitude_with_each_sign(x: F32, block: int) -> None:
    out = decoded(quantized(onebit, x, block), x.size, block)
    assert ((out < 0) == ((x < 0) & (out != 0))).all()
    for i in range(0, x.size, block):
        mean = np.abs(x[i : i + block].astype(np.float64)).mean()
        np.testing.assert_allclose(np.abs(out[i : i + block]), mean, rtol=2.0**-23)


@given(moderate)
def test_is_a_contraction_with_exactly_the_stated_constant(x: F32) -> None:
    block = 8 * max(1, -(-x.size // 8))
    out = decoded(quantized(onebit, x, block), x.size, block).astype(np.float64)
    squares = float((x.astype(np.float64) ** 2).sum())
    magnitudes = float(np.abs(x.astype(np.float64)).sum())
    kept = magnitudes**2 / max(x.size, 1)
    assert float(((out - x) ** 2).sum()) == pytest.approx(squares - kept, abs=1e-6 * squares)


@given(moderate, blocks, st.integers(0, 99), st.sampled_from((1.0, 1024.0)))
def test_nothing_is_lost(x: F32, block: int, seed: int, loss_scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(loss_scale)
    p = x + np.float32(loss_scale) * residual
    payload = quantized(onebit, x, block, residual, loss_scale)
    assert payload[2] is not None
    total = decoded(payload, x.size, block).astype(np.float64) + loss_scale * payload[2]
    assert (np.abs(total - p) <= 2.0**-22 * block_max(p, block) + 1e-38).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_block_only(bad: float) -> None:
    x = np.ones(24, np.float32)
    x[9] = bad
    payload = quantized(onebit, x, 8, np.full(24, 0.01, np.float32))
    out, residual = decoded(payload, 24, 8), payload[2]
    assert residual is not None
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(np.delete(out, range(8, 16))).all()
    assert (residual[8:16] == np.float32(0.01)).all()
    assert (np.abs(np.delete(residual, range(8, 16))) < 1e-6).all()


def test_largest_numbers_do_not_overflow() -> None:
    x = np.full(64, np.finfo(np.float32).max)
    assert quantized(onebit, x, 64)[1].tolist() == [x[0]]


def test_golden_bytes() -> None:
    x = np.array([1, -1, 1, 1, -1, 1, -1, -0.0, 2, 2, -2], np.float32)
    bits, scales, _ = quantized(onebit, x, 8)
    # the first block has one element per plane; so has the second, of 3
    assert bits.tobytes() == bytes([0b01010010, 0b100])
    assert scales.tolist() == [0.875, 2.0]
    bits, *_ = quantized(onebit, x, 16)
    # planes of 2: elements 0 1, 2 3, 4 5, 6 7, 8 9, 10
    assert bits.tobytes() == bytes([0b101100, 0b000001])


@pytest.mark.parametrize("block", [0, 4, 12, -8])
def test_refuses_blocks_that_do_not_fill_bytes(block: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        sign_bytes(10, block)


def test_slices_in_threads_give_the_bits_of_the_whole() -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Any]:
        payload = quantized(onebit, x, 1024, x)
        return [*payload, decoded(payload, x.size, 1024)]

    alike_in_threads(there_and_back)
