from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import Form, Noise, block_count, blockwise, reference
from compressa.kernels.blockwise import STATISTICS, Statistic, dequantize_blockwise, sum_blockwise
from compressa.kernels.cpu._stream import LEAST_ELEMS
from compressa.kernels.cuda._work import HELD, quantizer_for
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    KINDS,
    SCALES,
    as_kind,
    block_max,
    gradients,
    kinds,
    poisoned,
    residual_for,
    same_bits,
)

BLOCKS = {8: (8, 10, 64, 256, 2048), 4: (8, 10, 64, 128, 256, 1026), 2: (8, 12, 64, 256, 1028)}
forms = st.sampled_from(
    [Form(bits=b, block=n, statistic=s) for b, ns in BLOCKS.items() for n in ns for s in STATISTICS]
    + [Form(bits=8, block=64, statistic="l2", levels=31), Form(bits=4, block=8, levels=5)]
)
plain_forms = st.sampled_from(
    [Form(bits=b, block=n) for b, ns in BLOCKS.items() for n in ns if n <= 256]
)
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
noises = st.none() | st.builds(
    Noise, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.just(1), st.integers(0, 2999)
)
moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-25, 1e-3, 1.0, 1e25))
Payload = tuple[np.ndarray, F32, F32 | None, F32 | None]


def quantized(
    kernels: Any,
    x: np.ndarray,
    form: Form,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
    noise: Noise | None = None,
) -> Payload:
    """Codes, scales, offsets, and what is left."""
    blocks, left = block_count(x.size, form.block), copied(residual)
    codes, scales = poisoned(form.code_bytes(x.size), np.uint8), poisoned(blocks, np.float32)
    offsets = poisoned(blocks, np.float32) if form.statistic == "range" else None
    options: dict[str, Any] = {"noise": noise, "residual": left, "loss_scale": loss_scale}
    kernels.quantize_blockwise(x, codes, scales, form=form, offsets=offsets, **options)
    return codes, scales, offsets, left


def decoded(payload: Payload, n: int, form: Form) -> F32:
    out = poisoned(n, np.float32)
    dequantize_blockwise(*payload[:2], out, form=form, offsets=payload[2])
    return out


def same_payload(ours: Payload, other: Payload) -> bool:
    both = zip(ours, other, strict=True)
    return all(same_bits(a, b) if a is not None and b is not None else a is b for a, b in both)


@on_every_backend
@settings(max_examples=166)
@given(gradients(), kinds, forms, feedback, noises)
def test_quantize_equals_reference(
    x: F32, kind: str, form: Form, keep: tuple[int | None, float], noise: Noise | None
) -> None:
    given_x, residual = as_kind(x, kind), residual_for(x, keep[0])
    alike(
        "blockwise",
        lambda k: quantized(k, given_x, form, residual, keep[1], noise),
        reads=[given_x],
        on_cpu=kind == "float32",
    )


@on_every_backend
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("keep", [None, 3])
def test_gradients_of_16_bits_give_the_codes_of_their_values(kind: str, keep: int | None) -> None:
    form = Form(bits=8, block=64)
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    x[:4] = 1e-7, -6e-5, 0.0, 65504.0
    given_x, residual = as_kind(x, kind), residual_for(x, keep)
    wide = (
        given_x.astype(np.float32)
        if given_x.dtype == np.float16
        else (given_x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    )
    payload = alike("blockwise", lambda k: quantized(k, given_x, form, residual))
    assert same_payload(payload, quantized(blockwise, wide, form, residual))  # type: ignore[arg-type]


@on_every_backend
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
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
    before = random.standard_normal(n).astype(np.float32)

    def dequantized(kernels: Any) -> list[F32]:
        out = before.copy()
        kernels.dequantize_blockwise(
            codes, scales, out, form=form, offsets=offsets, weight=weight, add=add
        )
        return [out]

    alike("blockwise", dequantized)


@on_every_backend
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("bits", "block"), [(b, n) for b in (8, 4, 2) for n in HELD[b]])
def test_blocks_held_in_registers_over_many_iterations(
    bits: int, block: int, statistic: Statistic
) -> None:
    """Whole groups of blocks, one after another by the same threads, and then the rest."""
    form = Form(bits=bits, block=block, statistic=statistic)
    number = STATISTICS.index(statistic)
    at_random = number % 2 == 1
    group = 256 // quantizer_for(bits, block, at_random=at_random)[1] * block
    n = group * (37 if number == 0 and block <= 512 else 3) + block + 7
    x = np.random.default_rng(block).standard_normal(n).astype(np.float32)
    x[block] = np.inf
    given_x, residual = as_kind(x, KINDS[number % 3]), residual_for(x, None if number == 3 else 1)
    noise = Noise(1, 2, 3, 4, 2**40 + 12 * number) if at_random else None
    alike(
        "blockwise",
        lambda k: quantized(k, given_x, form, residual, 3.0, noise),
        reads=[given_x],
        on_cpu=False,
    )


@on_every_backend
@pytest.mark.parametrize("which", ["x", "residual", "codes", "numbers"])
def test_blocks_at_odd_addresses_are_not_held(which: str) -> None:
    form, n = Form(bits=4, block=128), 5 * 2048 + 1
    x = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    arrays = {"x": x, "residual": residual_for(x, 3), "codes": poisoned(n // 2 + 1, np.uint8)}

    def run(kernels: Any) -> list[np.ndarray]:
        there = {name: odd(a, int(name == which)) for name, a in arrays.items() if a is not None}
        scales = poisoned(block_count(n, 128), np.float32)
        given_x, residual, codes = (there[name][1] for name in ("x", "residual", "codes"))
        noise = Noise(1, 2, 3, 4, 2**40 + 1) if which == "numbers" else None
        kernels.quantize_blockwise(
            given_x, codes, scales, form=form, noise=noise, residual=residual
        )
        return [scales, *(whole for whole, _ in there.values())]

    alike("blockwise", run)


@on_every_backend
@pytest.mark.parametrize("block", [1024, 8192, 9000])
def test_random_numbers_of_many_and_of_long_blocks(block: int) -> None:
    form, noise = Form(bits=4, block=block, statistic="l2"), Noise(1, 2, 3, 4, 2**40 + 77)
    x = np.random.default_rng(block).standard_normal(40_001).astype(np.float32)
    alike("blockwise", lambda k: quantized(k, x, form, noise=noise))


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    bits: int, shift: int
) -> None:
    form = Form(bits=bits, block=64)
    whole = np.random.default_rng(bits).standard_normal(1000 + 2 * shift).astype(np.float32)
    x = whole[shift:-shift]

    def quantized_there(kernels: Any) -> list[np.ndarray]:
        codes, packed = odd(poisoned(form.code_bytes(x.size), np.uint8), shift)
        all_scales, scales = odd(poisoned(block_count(x.size, 64), np.float32), shift)
        left, residual = odd(x, shift)
        kernels.quantize_blockwise(x, packed, scales, form=form, residual=residual)
        return [codes, all_scales, left]

    alike("blockwise", quantized_there)


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
    with reference():
        dequantize_blockwise(codes, scales, specified, form=form)
    before[first : first + n] = specified
    assert same_bits(memory, before)


@given(moderate, plain_forms)
def test_error_is_at_most_half_a_scale(x: F32, form: Form) -> None:
    payload = quantized(blockwise, x, form)
    scale = block_max(x, form.block) / form.top
    error = np.abs(decoded(payload, x.size, form).astype(np.float64) - x)
    assert (error <= scale * (0.5 + form.top * 2.0**-22)).all()


@given(moderate, st.sampled_from([Form(bits=b, block=64, statistic="range") for b in (8, 4, 2)]))
def test_error_is_at_most_half_a_scale_between_the_extremes(x: F32, form: Form) -> None:
    payload = quantized(blockwise, x, form)
    scale = np.repeat(payload[1].astype(np.float64), form.block)[: x.size]
    error = np.abs(decoded(payload, x.size, form).astype(np.float64) - x)
    assert (error <= scale * (0.5 + form.top * 2.0**-22) + 2.0**-23 * np.abs(x)).all()


@given(moderate, plain_forms, st.integers(0, 99), st.sampled_from((1.0, 1024.0)))
def test_nothing_is_lost(x: F32, form: Form, seed: int, loss_scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(loss_scale)
    p = x + np.float32(loss_scale) * residual
    payload = quantized(blockwise, x, form, residual, loss_scale)
    assert payload[3] is not None
    total = decoded(payload, x.size, form).astype(np.float64) + loss_scale * payload[3]
    assert (np.abs(total - p) <= 2.0**-23 * block_max(p, form.block) + 1e-38).all()


def test_stochastic_rounding_is_unbiased_and_exact_on_the_grid() -> None:
    form, draws = Form(bits=4, block=64, levels=4), 4000
    x = np.linspace(-4, 4, 64).astype(np.float32)
    outs = np.array(
        [
            decoded(quantized(blockwise, x, form, noise=Noise(1, 2, s, 3)), 64, form)
            for s in range(draws)
        ],
        np.float64,
    )
    # Each element is one of two neighbours: six deviations of a fair coin, at the most.
    assert np.abs(outs.mean(axis=0) - x).max() < 6 * 0.5 / draws**0.5
    assert (np.abs(outs - x) < 1).all()
    on_grid = np.repeat(np.float32([-4, -3, 0, 1, 2, 3, 4, 4]), 8)
    for step in range(200):
        payload = quantized(blockwise, on_grid, form, noise=Noise(1, 2, step, 3))
        assert same_bits(decoded(payload, 64, form), on_grid)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_poisons_one_block_only(
    bits: int, statistic: Statistic, bad: float
) -> None:
    form = Form(bits=bits, block=8, statistic=statistic)
    x = np.ones(24, np.float32)
    x[9] = bad
    payload = quantized(blockwise, x, form, np.full(24, 0.01, np.float32))
    out, residual = decoded(payload, 24, form), payload[3]
    assert residual is not None
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(np.delete(out, range(8, 16))).all()
    assert (residual[8:16] == np.float32(0.01)).all()
    assert np.isfinite(residual).all()


def test_sum_that_overflows_counts_as_overflow() -> None:
    x = np.full(8, 3e38, np.float32)
    _, scales, _, residual = quantized(blockwise, x, Form(bits=8, block=8), x)
    assert np.isnan(scales).all()
    assert (residual == np.float32(3e38)).all()


def test_a_range_that_overflows_counts_as_overflow() -> None:
    form = Form(bits=8, block=8, statistic="range")
    x = np.float32([3e38, -3e38, 0, 0, 0, 0, 0, 0])
    payload = quantized(blockwise, x, form, np.zeros(8, np.float32))
    assert np.isnan(decoded(payload, 8, form)).all()
    assert payload[3] is not None
    assert not payload[3].any()


def test_values_close_together_keep_their_differences() -> None:
    form = Form(bits=8, block=8, statistic="range")
    x = np.float32(1000) + np.arange(8, dtype=np.float32) * np.float32(2.0**-13)
    out = decoded(quantized(blockwise, x, form), 8, form)
    assert (np.abs(out - x) <= 2.0**-13).all()


@pytest.mark.parametrize("statistic", ["max", "range"])
def test_smallest_numbers_survive(statistic: Statistic) -> None:
    x = np.array([1e-45, -1e-45, 0, 0, 0, 0, 0, 0], np.float32)
    form = Form(bits=8, block=8, statistic=statistic)
    assert (decoded(quantized(blockwise, x, form), 8, form) == x).all()


def test_golden_bytes() -> None:
    x = np.array([7, -7, 3.5, 0, 1, 2.5, -1.5, 0.4, 7, -1, 6], np.float32)
    codes, scales, *_ = quantized(blockwise, x, Form(bits=4, block=8))
    # 3.5 -> 4, 2.5 -> 2, -1.5 -> -2: half to even. Planar: 7|1, -7|2, 4|-2, 0|0; 7|6, -1|none
    assert codes.tobytes() == bytes([0x9F, 0xA1, 0x6C, 0x88, 0xEF, 0x87])
    assert scales.tolist() == [1.0, 1.0]
    eight = Form(bits=8, block=8)
    codes, *_ = quantized(blockwise, np.float32(127) * x[:2] / 7, eight)
    assert codes.tobytes() == bytes([127, 256 - 127])
    codes, *_ = quantized(blockwise, x, Form(bits=2, block=8))
    # 1 -1 0 0, 0 0 0 0 (elements 0 2 4 6, then 1 3 5 7); 1 0 1: each plus 2.
    assert codes.tobytes() == bytes([0b10_10_10_11, 0b10_10_10_01, 0b10_11_10_11])
    low = Form(bits=4, block=8, statistic="range")
    codes, scales, offsets, _ = quantized(blockwise, np.arange(8, dtype=np.float32), low)
    assert offsets is not None
    assert (scales.tolist(), offsets.tolist()) == ([float(np.float32(7 / 15))], [0.0])
    assert codes.tobytes() == bytes([0x90, 0xB2, 0xD4, 0xF6])


@pytest.mark.parametrize("noise", [None, Noise(1, 2, 3, 4, 192)])
@pytest.mark.parametrize("form", [Form(bits=b, block=64, statistic="range") for b in (2, 4, 8)])
def test_slices_in_threads_give_the_bits_of_the_whole(form: Form, noise: Noise | None) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Any]:
        payload = quantized(blockwise, x, form, np.zeros_like(x), 1.0, noise)
        return [*payload, decoded(payload, x.size, form)]

    alike_in_threads(there_and_back)


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
            blockwise.quantize_blockwise(
                x, np.empty(8, np.uint8), scales, form=form, offsets=offsets
            )


def test_codes_take_their_bits() -> None:
    sizes = (0, 1, 8, 9, 16)
    assert [Form(bits=8, block=8).code_bytes(n) for n in sizes] == [0, 1, 8, 9, 16]
    assert [Form(bits=4, block=8).code_bytes(n) for n in sizes] == [0, 1, 4, 5, 8]
    assert [Form(bits=2, block=8).code_bytes(n) for n in sizes] == [0, 1, 2, 3, 4]


@on_every_backend
def test_the_sum_of_no_payload_is_zero_and_minus_zeros_add_up_to_zero() -> None:
    form = Form(bits=8, block=8)
    codes, scales = np.uint8([255, 0, 1]), np.float32([0.0])

    def sums(kernels: Any) -> list[F32]:
        none, zeros = poisoned(100, np.float32), poisoned(3, np.float32)
        kernels.sum_blockwise([], [], none, form=form)
        kernels.sum_blockwise([codes] * 2, [scales] * 2, zeros, form=form)
        return [none, zeros]

    assert all(same_bits(out, np.zeros_like(out)) for out in alike("blockwise", sums))


def test_offsets_are_not_summed_with_other_statistics() -> None:
    out, codes, scales = poisoned(8, np.float32), [np.zeros(8, np.uint8)], [np.ones(1, np.float32)]
    with pytest.raises(ValueError, match="offsets"):
        sum_blockwise(codes, scales, out, form=Form(bits=8, block=8), offsets=scales)
