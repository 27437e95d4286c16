from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import (
    block_count,
    group_sign_bytes,
    sign_bytes,
    sign_dequantize,
    sign_quantize,
    two_means_dequantize,
    two_means_quantize,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    KINDS,
    SCALES,
    as_kind,
    gradients,
    kinds,
    poisoned,
    residual_for,
)

groups = st.sampled_from((1, 5, 8, 27, 64, 260, 600, 1024, 1032, 4096, 1 << 16, 1 << 40))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-10, 1.0, 1e10))
Keep = tuple[int | None, float]


def quantized(
    function: Callable[..., None],
    x: np.ndarray,
    group: int,
    residual: F32 | None,
    loss_scale: float = 1.0,
) -> tuple[np.ndarray, F32]:
    bits = poisoned(group_sign_bytes(x.size, group), np.uint8)
    means = poisoned(2 * block_count(x.size, group), np.float32)
    function(x, bits, means, group=group, residual=residual, loss_scale=loss_scale)
    return bits, means


def decoded(bits: np.ndarray, means: F32, n: int, group: int) -> F32:
    out = poisoned(n, np.float32)
    two_means_dequantize(bits, means, out, group=group)
    return out


def check_quantize(
    x: Array, group: int, before: F32 | None, loss_scale: float, shift: int = 0, **how: Any
) -> None:
    """At any address, with something beside all that is written."""
    given_x = odd(x, shift)[1]

    def run(kernels: Any) -> list[Array]:
        bits, packed = odd(poisoned(group_sign_bytes(x.size, group), np.uint8), shift)
        pairs, means = odd(poisoned(2 * block_count(x.size, group), np.float32), shift)
        left, residual = (None, None) if before is None else odd(before, shift)
        options = {"residual": residual, "loss_scale": loss_scale}
        kernels.two_means_quantize(given_x, packed, means, group=group, **options)
        return [bits, pairs, left]

    alike("onebit_sgd", run, reads=[given_x], **how)


@on_every_backend
@settings(max_examples=166)
@given(gradients(), kinds, groups, feedback, st.integers(0, 5))
def test_quantize_equals_reference(x: F32, kind: str, group: int, keep: Keep, shift: int) -> None:
    residual, on_cpu = residual_for(x, keep[0]), kind == "float32"
    check_quantize(as_kind(x, kind), group, residual, keep[1], shift, on_cpu=on_cpu)


@on_every_backend
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("seed", [None, 4])
def test_gradients_of_16_bits_equal_reference(kind: str, seed: int | None) -> None:
    wide = np.random.default_rng(1).standard_normal(257).astype(np.float32)
    check_quantize(as_kind(wide, kind), 27, residual_for(wide, seed), 3.0)


def check_dequantize(n: int, group: int, seed: int, weight: float, add: bool, shift: int) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 256, group_sign_bytes(n, group) + shift, dtype=np.uint8)[shift:]
    means = random.integers(0, 2**32, 2 * block_count(n, group), dtype=np.uint32).view(np.float32)
    before = random.standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[F32]:
        whole, out = odd(before, shift)
        kernels.two_means_dequantize(bits, means, out, group=group, weight=weight, add=add)
        return [whole]

    alike("onebit_sgd", run)


@on_every_backend
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    groups,
    st.integers(0, 99),
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
    st.integers(0, 5),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, group: int, seed: int, weight: float, add: bool, shift: int
) -> None:
    check_dequantize(n, group, seed, weight, add, shift)


@on_every_backend
@pytest.mark.parametrize(
    ("n", "group"),
    [
        (8000, 40),
        (9001, 1000),
        (20_003, 1025),
        (20_003, 10_240),
        (140_001, 1 << 16),
        (70_001, 1 << 17),
    ],
)
def test_teams_and_pieces_of_many_iterations(n: int, group: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    check_quantize(x, group, residual_for(x, 3), 3.0, orders=(0, 1))
    check_dequantize(n, group, 1, 0.5, True, 0)


@on_every_backend
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("group", [600, 5000, 1 << 16])
def test_what_is_not_finite_poisons_one_group_only(group: int, bad: float) -> None:
    x = np.random.default_rng(1).standard_normal(2 * group + 7).astype(np.float32)
    x[group + group // 2] = bad
    check_quantize(x, group, residual_for(x, 2), 1.0)


@given(moderate, groups)
def test_decode_is_the_mean_of_the_elements_of_each_sign(x: F32, group: int) -> None:
    out = decoded(*quantized(two_means_quantize, x, group, None), x.size, group)
    for low in range(0, x.size, group):
        part, wide = out[low : low + group], x[low : low + group].astype(np.float64)
        for chosen in (wide < 0, wide >= 0):
            mean = wide[chosen].mean() if chosen.any() else 0.0
            np.testing.assert_allclose(part[chosen], mean, rtol=2.0**-23, atol=1e-45)


@given(moderate, groups, st.integers(0, 99))
def test_residual_of_each_sign_sums_to_zero_in_every_group(x: F32, group: int, seed: int) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    p = x + residual
    quantized(two_means_quantize, x, group, residual)
    for low in range(0, x.size, group):
        part, left = p[low : low + group], residual[low : low + group].astype(np.float64)
        most = 2.0**-23 * np.abs(part).sum(dtype=np.float64) + 1e-40
        assert abs(left[part < 0].sum()) <= most
        assert abs(left[part >= 0].sum()) <= most


@given(moderate, st.sampled_from((8, 64, 512)))
def test_error_is_never_larger_than_that_of_one_scale(x: F32, group: int) -> None:
    out = decoded(*quantized(two_means_quantize, x, group, None), x.size, group)
    bits, scales = np.empty(sign_bytes(x.size, group), np.uint8), poisoned(0, np.float32)
    scales = np.empty(block_count(x.size, group), np.float32)
    sign_quantize(x, bits, scales, block=group)
    other = np.empty_like(x)
    sign_dequantize(bits, scales, other, block=group)
    wide = x.astype(np.float64)
    errors = [float(((decode - wide) ** 2).sum()) for decode in (out, other)]
    assert errors[0] <= errors[1] + 2.0**-40 * float((wide**2).sum())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_group_only(bad: float) -> None:
    x, residual = np.ones(15, np.float32), np.full(15, 0.01, np.float32)
    x[6] = bad
    out = decoded(*quantized(two_means_quantize, x, 5, residual), 15, 5)
    assert np.isnan(out[5:10]).all()
    assert np.isfinite(np.delete(out, range(5, 10))).all()
    assert (residual[5:10] == np.float32(0.01)).all()
    assert (np.abs(np.delete(residual, range(5, 10))) < 1e-6).all()


def test_largest_numbers_do_not_overflow() -> None:
    x = np.full(64, np.finfo(np.float32).max)
    x[::3] *= -1
    _, means = quantized(two_means_quantize, x, 64, None)
    assert means.tolist() == [-x[1], x[1]]


def test_golden_bytes() -> None:
    x = np.array([1, -1, 3, 1, -5, 1, -3, 6, -0.0, 2, 2, -2], np.float32)
    bits, means = quantized(two_means_quantize, x, 10, None)
    # planes of 2: elements 0 1, 2 3, 4 5, 6 7, 8 9; then a byte for the group of 2
    assert bits.tobytes() == bytes([0b01100, 0b00001, 0b10])
    assert means.tolist() == [-3.0, 2.0, -2.0, 2.0]


@pytest.mark.parametrize("group", [0, -8])
def test_refuses_empty_groups(group: int) -> None:
    with pytest.raises(ValueError, match="group must be positive"):
        group_sign_bytes(10, group)
