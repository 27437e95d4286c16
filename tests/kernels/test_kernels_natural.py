from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import Noise
from compressa.kernels.natural import natural_dequantize, natural_quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    kinds,
    poisoned,
    residual_for,
)

SPAN = 8192  # elements of a block of threads
NOISE = Noise(1, 2, 3, 4)
EDGES = st.sampled_from((0, 1, 2, 1023, 1024, 1025, 5000, 2**32 - 3, 2**40 + 511))
noises = st.builds(
    Noise,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.just(1),
    st.integers(0, 5000) | EDGES,
)
Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))


def quantized(
    function: object,
    x: np.ndarray,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    exponents, signs = poisoned(x.size, np.uint8), poisoned((x.size + 7) // 8, np.uint8)
    function(  # type: ignore[operator]
        x, exponents, signs, noise=noise, residual=residual, loss_scale=loss_scale
    )
    return exponents, signs


def round_trip(x: F32, step: int) -> F32:
    out = poisoned(x.size, np.float32)
    payload = quantized(natural_quantize, x, NOISE._replace(step=step))
    natural_dequantize(*payload, out)
    return out


def check_quantize(
    x: Array, noise: Noise, residual: F32 | None = None, loss_scale: float = 1.0, **how: Any
) -> None:
    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        return [*quantized(kernels.natural_quantize, x, noise, left, loss_scale), left]

    alike("natural", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=140)
@given(gradients(sizes=(*SIZES, 1024, 2500, SPAN + 9)), kinds, noises, feedback)
def test_quantize_equals_reference(x: F32, kind: str, noise: Noise, keep: Keep) -> None:
    residual, on_cpu = residual_for(x, keep[0]), kind == "float32"
    check_quantize(as_kind(x, kind), noise, residual, keep[1], on_cpu=on_cpu)


@on_every_backend
@pytest.mark.parametrize("start", [0, 4711, 4712])
def test_more_spans_than_blocks_of_threads_in_any_order(start: int) -> None:
    x = np.random.default_rng(start).standard_normal(35 * SPAN + 1029).astype(np.float32)
    x[SPAN + 1 :: SPAN] = np.inf
    residual = residual_for(x, 1) if start else None
    check_quantize(x, NOISE._replace(start=start), residual, orders=range(2))


@on_every_backend
def test_exponents_at_both_ends_round_as_the_reference_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    ends = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7EFFFFFF, 0x7F7FFFFF, 0x7F800000], np.uint32)
    both = np.concatenate([bits, ends, ends | np.uint32(1 << 31)]).view(np.float32)
    check_quantize(both, NOISE)


@on_every_backend
@pytest.mark.parametrize("n", [0, 1, 7, 9, 1024, 1025, 3001, 2 * SPAN + 5, 140_003])
@pytest.mark.parametrize("add", [False, True])
def test_dequantize_of_any_bytes_equals_reference(n: int, add: bool) -> None:
    random = np.random.default_rng(n)
    exponents = random.integers(0, 256, n, dtype=np.uint8)
    signs = random.integers(0, 256, (n + 7) // 8, dtype=np.uint8)
    before = random.standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[F32]:
        out = before.copy()
        kernels.natural_dequantize(exponents, signs, out, weight=0.3, add=add)
        return [out]

    alike("natural", run)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("n", [5, 1030, 2048, SPAN + 1])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(n: int, shift: int) -> None:
    whole = np.random.default_rng(n).standard_normal(n + 2 * shift).astype(np.float32)
    x = whole[shift:-shift]

    def there_and_back(kernels: Any) -> list[Array]:
        powers, exponents = odd(poisoned(n, np.uint8), shift)
        bits, signs = odd(poisoned((n + 7) // 8, np.uint8), shift)
        (left, residual), (wide, out) = odd(x, shift), odd(x, shift)
        kernels.natural_quantize(x, exponents, signs, noise=NOISE, residual=residual)
        kernels.natural_dequantize(exponents, signs, out)
        return [powers, bits, left, wide]

    alike("natural", there_and_back)


@on_every_backend
@pytest.mark.parametrize("which", ["x", "residual", "exponents", "signs", "out"])
def test_one_array_at_an_odd_address_is_enough_to_take_no_vectors(which: str) -> None:
    x = np.random.default_rng(5).standard_normal(SPAN + 1).astype(np.float32)
    exponents, signs = poisoned(x.size, np.uint8), poisoned((x.size + 7) // 8, np.uint8)
    arrays = {"x": x, "residual": x, "exponents": exponents, "signs": signs, "out": x}

    def run(kernels: Any) -> list[Array]:
        there = {name: odd(array, int(name == which)) for name, array in arrays.items()}
        given_x, left, *payload, out = (part for _, part in there.values())
        kernels.natural_quantize(given_x, *payload, noise=NOISE, residual=left)
        kernels.natural_dequantize(*payload, out, add=True)
        return [whole for whole, _ in there.values()]

    alike("natural", run)


def test_powers_of_two_and_zero_come_back_exactly() -> None:
    x = np.float32([0, 1, -1, 0.5, 2.0**127, -(2.0**-126), 3.0, -3.0])
    for step in range(50):
        out = round_trip(x, step)
        assert (out[:6] == x[:6]).all()
        assert set(np.abs(out[6:])) <= {2.0, 4.0}


def test_is_unbiased_and_its_second_moment_is_at_most_nine_eighths() -> None:
    x = np.repeat(np.float32([4 / 3, -1.1, 1.9, 3e-30, 2e-38, -5e20]), 64)
    outs = np.array([round_trip(x, step) for step in range(1500)], np.float64)
    exact = x.astype(np.float64)
    size = np.abs(exact)
    means = outs.reshape(1500, 6, 64).mean(axis=(0, 2))
    # 96,000 draws of a deviation of at most half the larger neighbour: six of them.
    assert (np.abs(means - exact[::64]) <= 6 * size[::64] / 96_000**0.5).all()
    moment = (outs[:, :64] ** 2).mean() / exact[0] ** 2
    assert moment == pytest.approx(9 / 8, rel=0.01)


def test_subnormal_numbers_become_zero() -> None:
    assert not round_trip(np.float32([1e-45, -1e-40, 1.1e-38]), 1).any()


def test_what_is_not_finite_stays_so_and_poisons_nothing() -> None:
    x, residual = np.ones(16, np.float32), np.full(16, 0.25, np.float32)
    x[[3, 5, 7]] = np.nan, np.inf, -np.inf
    out = poisoned(16, np.float32)
    natural_dequantize(*quantized(natural_quantize, x, NOISE, residual), out)
    assert np.isinf(out[[3, 5, 7]]).all()
    assert np.isfinite(np.delete(out, [3, 5, 7])).all()
    assert (residual[[3, 5, 7]] == np.float32(0.25)).all()


def test_slices_in_threads_give_the_bits_of_the_whole() -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Array]:
        payload, out = quantized(natural_quantize, x, NOISE), poisoned(x.size, np.float32)
        natural_dequantize(*payload, out)
        return [*payload, out]

    alike_in_threads(there_and_back)
