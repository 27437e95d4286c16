"""The CUDA kernels of block-wise quantisation, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, Noise, block_count
from compressa.kernels.blockwise import STATISTICS
from compressa.kernels.cuda import blockwise
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import blockwise as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits
from sum_cases import COUNTS, any_bytes, any_units, counts, dtypes, weights

pytestmark = on_emulated_cuda

BLOCKS = {8: (8, 10, 256, 2048), 4: (8, 10, 128, 1026), 2: (8, 12, 64, 1028)}
forms = st.sampled_from(
    [Form(bits=b, block=n, statistic=s) for b, ns in BLOCKS.items() for n in ns for s in STATISTICS]
    + [Form(bits=8, block=64, statistic="l2", levels=31), Form(bits=4, block=8, levels=5)]
)
noises = st.none() | st.builds(
    Noise, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.just(1), st.integers(0, 2999)
)


def payload_of(x: F32, form: Form) -> tuple[Any, ...]:
    blocks = -(-x.size // form.block)
    offsets = poisoned(blocks, np.float32) if form.statistic == "range" else None
    return poisoned(form.code_bytes(x.size), np.uint8), poisoned(blocks, np.float32), offsets


@given(
    gradients(),
    st.sampled_from(KINDS),
    forms,
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
    noises,
)
def test_quantize_equals_reference(
    x: F32, kind: str, form: Form, seed: int | None, scale: float, noise: Noise | None
) -> None:
    given_x, ours, specified = as_kind(x, kind), residual_for(x, seed), residual_for(x, seed)
    codes, scales, offsets = payload_of(x, form)
    due_codes, due_scales, due_offsets = payload_of(x, form)
    rest: dict[str, Any] = {"form": form, "noise": noise, "scale": scale}
    blockwise.quantize_blockwise(given_x, codes, scales, offsets=offsets, residual=ours, **rest)
    with np.errstate(all="ignore"):
        reference.quantize_blockwise(
            given_x, due_codes, due_scales, offsets=due_offsets, residual=specified, **rest
        )
    assert same_bits(codes, due_codes)
    assert same_bits(scales, due_scales)
    assert offsets is None or same_bits(offsets, due_offsets)
    assert ours is None or specified is None or same_bits(ours, specified)


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
    random = np.random.default_rng(seed)
    ours = random.standard_normal(n).astype(np.float32)
    codes, scales, offsets = payload_of(ours, form)
    codes[:] = random.integers(0, 256, codes.size, dtype=np.uint8)
    scales[:] = random.integers(0, 2**32, scales.size, dtype=np.uint32).view(np.float32)
    if offsets is not None:
        offsets[:] = scales[::-1]
    specified = ours.copy()
    options: dict[str, Any] = {"form": form, "offsets": offsets, "weight": weight, "add": add}
    blockwise.dequantize_blockwise(codes, scales, ours, **options)
    with np.errstate(all="ignore"):
        reference.dequantize_blockwise(codes, scales, specified, **options)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("block", [1024, 8192, 9000])
def test_random_numbers_of_many_and_of_long_blocks(block: int) -> None:
    form, noise = Form(bits=4, block=block, statistic="l2"), Noise(1, 2, 3, 4, 2**40 + 77)
    x = np.random.default_rng(block).standard_normal(40_001).astype(np.float32)
    (codes, scales, _), (due, due_scales, _) = payload_of(x, form), payload_of(x, form)
    blockwise.quantize_blockwise(x, codes, scales, form=form, noise=noise)
    reference.quantize_blockwise(x, due, due_scales, form=form, noise=noise)
    assert same_bits(codes, due)
    assert same_bits(scales, due_scales)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    bits: int, shift: int
) -> None:
    form = Form(bits=bits, block=64)
    whole = np.random.default_rng(bits).standard_normal(1000 + 2 * shift).astype(np.float32)
    x, left = whole[shift:-shift], whole.copy()
    codes = poisoned(form.code_bytes(x.size) + 2 * shift, np.uint8)
    untouched, (due, scales, _) = codes.copy(), payload_of(x, form)
    blockwise.quantize_blockwise(
        x, codes[shift:-shift], scales, form=form, residual=left[shift:-shift]
    )
    specified = x.copy()
    reference.quantize_blockwise(x, due, scales, form=form, residual=specified)
    assert same_bits(codes[shift:-shift], due)
    assert same_bits(left[shift:-shift], specified)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(codes[edge], untouched[edge])
        assert same_bits(left[edge], whole[edge])


def assert_sum_equals_reference(
    n: int, form: Form, count: int, dtype: Any, weight: float, seed: int
) -> None:
    random, blocks, shift = np.random.default_rng(seed), block_count(n, form.block), seed % 4
    codes = [any_bytes(random, form.code_bytes(n), shift) for _ in range(count)]
    scales, least = ([any_units(random, blocks, shift) for _ in range(count)] for _ in range(2))
    offsets = least if form.statistic == "range" else None
    whole, specified = poisoned(n + 2 * shift, dtype), poisoned(n + 2 * shift, dtype)
    place = slice(shift, shift + n)
    blockwise.sum_blockwise(codes, scales, whole[place], form=form, offsets=offsets, weight=weight)
    with np.errstate(all="ignore"):
        reference.sum_blockwise(
            codes, scales, specified[place], form=form, offsets=offsets, weight=weight
        )
    assert same_bits(whole, specified)


@settings(max_examples=60)
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)), forms, counts, dtypes, weights, st.integers(0, 99)
)
def test_sum_equals_reference(
    n: int, form: Form, count: int, dtype: Any, weight: float, seed: int
) -> None:
    assert_sum_equals_reference(n, form, count, dtype, weight, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_blocks_than_teams_in_any_order(count: int, dtype: Any) -> None:
    for seed, form in enumerate((Form(bits=4, block=64), Form(bits=8, block=2048))):
        with running_on(Emulated(seed)):
            assert_sum_equals_reference(40_001, form, count, dtype, 0.3, seed)


def test_the_sum_of_no_payload_is_zero() -> None:
    out = poisoned(100, np.float32)
    blockwise.sum_blockwise([], [], out, form=Form(bits=8, block=8))
    assert same_bits(out, np.zeros(100, np.float32))
