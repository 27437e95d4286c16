from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from compressa.kernels import (
    Form,
    Noise,
    block_count,
    dequantize_blockwise,
    quantize_blockwise,
    sum_blockwise,
)
from compressa.kernels.blockwise import Statistic
from compressa.kernels.cpu._stream import LEAST_ELEMS
from compressa.kernels.reference import blockwise as reference
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

BLOCKS = {8: (8, 10, 64, 256), 4: (8, 10, 64, 256), 2: (8, 12, 64, 256)}
STATISTICS: tuple[Statistic, ...] = ("max", "range", "l2", "clipped")
forms = st.sampled_from(
    [Form(bits=b, block=n, statistic=s) for b, ns in BLOCKS.items() for n in ns for s in STATISTICS]
    + [Form(bits=8, block=64, statistic="l2", levels=31), Form(bits=4, block=8, levels=5)]
)
plain_forms = st.sampled_from([Form(bits=b, block=n) for b, ns in BLOCKS.items() for n in ns])
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
noises = st.none() | st.builds(
    Noise, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.just(1), st.integers(0, 999)
)
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-25, 1e-3, 1.0, 1e25))
Payload = tuple[np.ndarray, F32, F32 | None]


def quantized(
    function: object,
    x: np.ndarray,
    form: Form,
    residual: F32 | None = None,
    scale: float = 1.0,
    noise: Noise | None = None,
) -> Payload:
    blocks = block_count(x.size, form.block)
    codes, scales = poisoned(form.code_bytes(x.size), np.uint8), poisoned(blocks, np.float32)
    offsets = poisoned(blocks, np.float32) if form.statistic == "range" else None
    function(  # type: ignore[operator]
        x,
        codes,
        scales,
        form=form,
        offsets=offsets,
        noise=noise,
        residual=residual,
        scale=scale,
    )
    return codes, scales, offsets


def decoded(payload: Payload, n: int, form: Form) -> F32:
    out = poisoned(n, np.float32)
    dequantize_blockwise(*payload[:2], out, form=form, offsets=payload[2])
    return out


def same_payload(ours: Payload, other: Payload) -> bool:
    both = zip(ours, other, strict=True)
    return all(same_bits(a, b) if a is not None and b is not None else a is b for a, b in both)


@given(gradients(), forms, feedback, noises)
def test_quantize_equals_reference(
    x: F32, form: Form, keep: tuple[int | None, float], noise: Noise | None
) -> None:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    payload = quantized(quantize_blockwise, x, form, ours, keep[1], noise)
    with np.errstate(all="ignore"):
        expected = quantized(reference.quantize_blockwise, x, form, specified, keep[1], noise)
    assert same_payload(payload, expected)
    assert ours is None or specified is None or same_bits(ours, specified)


def as_half(x: F32) -> np.ndarray:
    return x.astype(np.float16)


def as_bfloat16(x: F32) -> np.ndarray:
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


@pytest.mark.parametrize("narrow", [as_half, as_bfloat16])
@pytest.mark.parametrize("keep", [None, 3])
def test_gradients_of_16_bits_give_the_codes_of_their_values(narrow: Any, keep: int | None) -> None:
    form = Form(bits=8, block=64)
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    x[:4] = 1e-7, -6e-5, 0.0, 65504.0
    given_x = narrow(x)
    wide = (
        given_x.astype(np.float32)
        if given_x.dtype == np.float16
        else (given_x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    )
    ours, expected = residual_for(x, keep), residual_for(x, keep)
    payload = quantized(quantize_blockwise, given_x, form, ours)
    assert same_payload(payload, quantized(quantize_blockwise, wide, form, expected))
    assert ours is None or expected is None or same_bits(ours, expected)
    again = residual_for(x, keep)
    assert same_payload(payload, quantized(reference.quantize_blockwise, given_x, form, again))


@given(
    st.sampled_from((0, 1, 9, 64, 257)),
    st.integers(0, 99),
    forms,
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, form: Form, weight: float, add: bool
) -> None:
    random, blocks = np.random.default_rng(seed), block_count(n, form.block)
    codes = random.integers(0, 256, form.code_bytes(n), dtype=np.uint8)
    scales = random.integers(0, 2**32, blocks, dtype=np.uint32).view(np.float32)
    offsets = scales[::-1].copy() if form.statistic == "range" else None
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    options = {"form": form, "offsets": offsets, "weight": weight, "add": add}
    dequantize_blockwise(codes, scales, ours, **options)
    with np.errstate(all="ignore"):
        reference.dequantize_blockwise(codes, scales, specified, **options)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("form", [Form(bits=b, block=n) for b, n in ((8, 64), (4, 64), (2, 12))])
def test_a_large_array_is_decoded_to_any_address(form: Form, first: int) -> None:
    n, random = LEAST_ELEMS + 37, np.random.default_rng(form.bits)
    codes = random.integers(0, 256, form.code_bytes(n), dtype=np.uint8)
    scales = random.standard_normal(block_count(n, form.block)).astype(np.float32)
    memory = poisoned(n + 64, np.float32)
    first += -memory.ctypes.data // memory.itemsize % 16  # from the beginning of a cache line
    before, specified = memory.copy(), np.empty(n, np.float32)
    dequantize_blockwise(codes, scales, memory[first : first + n], form=form)
    reference.dequantize_blockwise(codes, scales, specified, form=form)
    before[first : first + n] = specified
    assert same_bits(memory, before)


@given(moderate, plain_forms)
def test_error_is_at_most_half_a_unit(x: F32, form: Form) -> None:
    payload = quantized(quantize_blockwise, x, form)
    unit = block_max(x, form.block) / form.top
    error = np.abs(decoded(payload, x.size, form).astype(np.float64) - x)
    assert (error <= unit * (0.5 + form.top * 2.0**-22)).all()


@given(moderate, st.sampled_from([Form(bits=b, block=64, statistic="range") for b in (8, 4, 2)]))
def test_error_is_at_most_half_a_unit_between_the_extremes(x: F32, form: Form) -> None:
    payload = quantized(quantize_blockwise, x, form)
    unit = np.repeat(payload[1].astype(np.float64), form.block)[: x.size]
    error = np.abs(decoded(payload, x.size, form).astype(np.float64) - x)
    assert (error <= unit * (0.5 + form.top * 2.0**-22) + 2.0**-23 * np.abs(x)).all()


@given(moderate, plain_forms, st.integers(0, 99), st.sampled_from((1.0, 1024.0)))
def test_nothing_is_lost(x: F32, form: Form, seed: int, scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(scale)
    p = x + np.float32(scale) * residual
    payload = quantized(quantize_blockwise, x, form, residual, scale)
    total = decoded(payload, x.size, form).astype(np.float64) + scale * residual
    assert (np.abs(total - p) <= 2.0**-23 * block_max(p, form.block) + 1e-38).all()


def test_stochastic_rounding_is_unbiased_and_exact_on_the_grid() -> None:
    form, draws = Form(bits=4, block=64, levels=4), 4000
    x = np.linspace(-4, 4, 64).astype(np.float32)
    outs = np.array(
        [
            decoded(quantized(quantize_blockwise, x, form, noise=Noise(1, 2, s, 3)), 64, form)
            for s in range(draws)
        ],
        np.float64,
    )
    # Each element is one of two neighbours: six deviations of a fair coin, at the most.
    assert np.abs(outs.mean(axis=0) - x).max() < 6 * 0.5 / draws**0.5
    assert (np.abs(outs - x) < 1).all()
    on_grid = np.repeat(np.float32([-4, -3, 0, 1, 2, 3, 4, 4]), 8)
    for step in range(200):
        payload = quantized(quantize_blockwise, on_grid, form, noise=Noise(1, 2, step, 3))
        assert same_bits(decoded(payload, 64, form), on_grid)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_block_only(
    bits: int, statistic: Statistic, bad: float
) -> None:
    form = Form(bits=bits, block=8, statistic=statistic)
    x, residual = np.ones(24, np.float32), np.full(24, 0.01, np.float32)
    x[9] = bad
    out = decoded(quantized(quantize_blockwise, x, form, residual), 24, form)
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(np.delete(out, range(8, 16))).all()
    assert (residual[8:16] == np.float32(0.01)).all()
    assert np.isfinite(residual).all()


def test_sum_that_overflows_counts_as_overflow() -> None:
    x, residual = np.full(8, 3e38, np.float32), np.full(8, 3e38, np.float32)
    _, scales, _ = quantized(quantize_blockwise, x, Form(bits=8, block=8), residual)
    assert np.isnan(scales).all()
    assert (residual == np.float32(3e38)).all()


def test_a_range_that_overflows_counts_as_overflow() -> None:
    form = Form(bits=8, block=8, statistic="range")
    x, residual = np.float32([3e38, -3e38, 0, 0, 0, 0, 0, 0]), np.zeros(8, np.float32)
    assert np.isnan(decoded(quantized(quantize_blockwise, x, form, residual), 8, form)).all()
    assert not residual.any()


def test_values_close_together_keep_their_differences() -> None:
    form = Form(bits=8, block=8, statistic="range")
    x = np.float32(1000) + np.arange(8, dtype=np.float32) * np.float32(2.0**-13)
    out = decoded(quantized(quantize_blockwise, x, form), 8, form)
    assert (np.abs(out - x) <= 2.0**-13).all()


@pytest.mark.parametrize("statistic", ["max", "range"])
def test_smallest_numbers_survive(statistic: Statistic) -> None:
    x = np.array([1e-45, -1e-45, 0, 0, 0, 0, 0, 0], np.float32)
    form = Form(bits=8, block=8, statistic=statistic)
    assert (decoded(quantized(quantize_blockwise, x, form), 8, form) == x).all()


def test_golden_bytes() -> None:
    x = np.array([7, -7, 3.5, 0, 1, 2.5, -1.5, 0.4, 7, -1, 6], np.float32)
    codes, scales, _ = quantized(quantize_blockwise, x, Form(bits=4, block=8))
    # 3.5 -> 4, 2.5 -> 2, -1.5 -> -2: half to even. Planar: 7|1, -7|2, 4|-2, 0|0; 7|6, -1|none
    assert codes.tobytes() == bytes([0x9F, 0xA1, 0x6C, 0x88, 0xEF, 0x87])
    assert scales.tolist() == [1.0, 1.0]
    eight = Form(bits=8, block=8)
    codes, _, _ = quantized(quantize_blockwise, np.float32(127) * x[:2] / 7, eight)
    assert codes.tobytes() == bytes([127, 256 - 127])
    codes, _, _ = quantized(quantize_blockwise, x, Form(bits=2, block=8))
    # 1 -1 0 0, 0 0 0 0 (elements 0 2 4 6, then 1 3 5 7); 1 0 1: each plus 2.
    assert codes.tobytes() == bytes([0b10_10_10_11, 0b10_10_10_01, 0b10_11_10_11])
    low = Form(bits=4, block=8, statistic="range")
    codes, scales, offsets = quantized(quantize_blockwise, np.arange(8, dtype=np.float32), low)
    assert offsets is not None
    assert (scales.tolist(), offsets.tolist()) == ([float(np.float32(7 / 15))], [0.0])
    assert codes.tobytes() == bytes([0x90, 0xB2, 0xD4, 0xF6])


@pytest.mark.parametrize("noise", [None, Noise(1, 2, 3, 4, 192)])
@pytest.mark.parametrize("form", [Form(bits=b, block=64, statistic="range") for b in (2, 4, 8)])
def test_slices_in_threads_give_the_bits_of_the_whole(form: Form, noise: Noise | None) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)
    whole, sliced = np.zeros_like(x), np.zeros_like(x)
    payload = quantized(quantize_blockwise, x, form, whole, 1.0, noise)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        assert same_payload(payload, quantized(quantize_blockwise, x, form, sliced, 1.0, noise))
        threaded = decoded(payload, x.size, form)
    assert same_bits(whole, sliced)
    assert same_bits(threaded, decoded(payload, x.size, form))


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 3, "block": 64},
        {"bits": 16, "block": 64},
        {"bits": 8, "block": 7},
        {"bits": 8, "block": 6},
        {"bits": 2, "block": 10},
        {"bits": 4, "block": 8, "levels": 8},
        {"bits": 4, "block": 8, "levels": 0},
        {"bits": 4, "block": 8, "statistic": "range", "levels": 3},
        {"bits": 4, "block": 8, "statistic": "mean"},
        {"bits": 4, "block": 8, "statistic": "clipped", "clip": 0.0},
    ],
)
def test_refuses_other_forms(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bits|block|levels|statistic|clip"):
        Form(**wrong)


def test_offsets_go_with_ranges_only() -> None:
    x, scales = np.ones(8, np.float32), np.empty(1, np.float32)
    for statistic, offsets in (("max", scales.copy()), ("range", None)):
        form = Form(bits=8, block=8, statistic=statistic)
        with pytest.raises(ValueError, match="offsets"):
            quantize_blockwise(x, np.empty(8, np.uint8), scales, form=form, offsets=offsets)


def test_codes_take_their_bits() -> None:
    sizes = (0, 1, 8, 9, 16)
    assert [Form(bits=8, block=8).code_bytes(n) for n in sizes] == [0, 1, 8, 9, 16]
    assert [Form(bits=4, block=8).code_bytes(n) for n in sizes] == [0, 1, 4, 5, 8]
    assert [Form(bits=2, block=8).code_bytes(n) for n in sizes] == [0, 1, 2, 3, 4]


def payloads(n: int, form: Form, count: int, seed: int) -> tuple[Any, Any, Any]:
    random, blocks = np.random.default_rng(seed), block_count(n, form.block)
    codes = [any_bytes(random, form.code_bytes(n), seed % 4) for _ in range(count)]
    scales, offsets = ([any_units(random, blocks) for _ in range(count)] for _ in range(2))
    return codes, scales, offsets if form.statistic == "range" else None


@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)), counts, forms, weights, dtypes, st.integers(0, 99)
)
def test_sum_is_that_of_one_payload_after_the_other(
    n: int, count: int, form: Form, weight: float, dtype: Any, seed: int
) -> None:
    codes, scales, offsets = payloads(n, form, count, seed)

    def add(i: int, total: F32) -> None:
        some = None if offsets is None else offsets[i]
        dequantize_blockwise(
            codes[i], scales[i], total, form=form, offsets=some, weight=weight, add=True
        )

    due = one_by_one(add, count, n, dtype)
    for function in (sum_blockwise, reference.sum_blockwise):
        out = poisoned(n, dtype)
        with np.errstate(all="ignore"):
            function(codes, scales, out, form=form, offsets=offsets, weight=weight)
        assert same_bits(out, due)


@pytest.mark.parametrize("form", [Form(bits=b, block=64, statistic="range") for b in (2, 4, 8)])
def test_sums_in_threads_are_those_of_the_whole(form: Form) -> None:
    n = (1 << 20) + 13
    codes, scales, offsets = payloads(n, form, 3, 0)
    whole, threaded = poisoned(n, np.float32), poisoned(n, np.float32)
    sum_blockwise(codes, scales, whole, form=form, offsets=offsets)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        sum_blockwise(codes, scales, threaded, form=form, offsets=offsets)
    assert same_bits(whole, threaded)


def test_the_sum_of_no_payload_is_zero_and_minus_zeros_add_up_to_zero() -> None:
    form, out = Form(bits=8, block=8), poisoned(3, np.float32)
    sum_blockwise([], [], out, form=form)
    assert same_bits(out, np.zeros(3, np.float32))
    codes, scales = np.uint8([255, 0, 1]), np.float32([0.0])
    sum_blockwise([codes] * 2, [scales] * 2, out, form=form)
    assert same_bits(out, np.zeros(3, np.float32))


def test_sums_of_unfit_payloads_are_refused() -> None:
    form, out = Form(bits=8, block=8), poisoned(8, np.float32)
    (first, second), scales, _ = payloads(8, form, 2, 0)
    with pytest.raises(ValueError, match=r"codes must have shape \(8,\)"):
        sum_blockwise([first, second[:7]], scales, out, form=form)
    with pytest.raises(ValueError, match="one of each array"):
        sum_blockwise([first, second], scales[:1], out, form=form)
    with pytest.raises(ValueError, match="offsets"):
        sum_blockwise([first, second], scales, out, form=form, offsets=scales)
    with pytest.raises(TypeError, match="out must be float32, float16, or bfloat16"):
        sum_blockwise([first, second], scales, out.astype(np.float64), form=form)
    assert same_bits(out, poisoned(8, np.float32))
