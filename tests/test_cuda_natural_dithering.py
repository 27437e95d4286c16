"""The CUDA kernels of natural dithering, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import Dithering, Noise, block_count
from compressa.kernels.cuda import natural_dithering
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import natural_dithering as reference
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
from sum_cases import any_bytes, any_units

pytestmark = on_emulated_cuda

NOISE = Noise(1, 2, 3, 4)
LEVELS = (1, 2, 3, 4, 7, 8, 24, 63, 64, 127)
BLOCKS = (8, 24, 64, 512, 1000, 1024, 1032, 4096, 5000)
forms = st.builds(
    Dithering,
    levels=st.sampled_from(LEVELS),
    block=st.sampled_from(BLOCKS),
    norm=st.sampled_from(["l2", "max"]),
)
noises = st.builds(
    Noise,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.just(1),
    st.sampled_from((0, 1, 1023, 1024, 5000, 2**32 - 3, 2**40 + 511)),
)


def payload_of(n: int, form: Dithering) -> tuple[Any, Any]:
    blocks = block_count(n, form.block)
    return poisoned(form.code_bytes(n), np.uint8), poisoned(blocks, np.float32)


def assert_dither_equals_reference(
    x: np.ndarray, form: Dithering, noise: Noise, residual: F32 | None = None, scale: float = 1.0
) -> None:
    ours, specified = (None if residual is None else residual.copy() for _ in range(2))
    payload, due = payload_of(x.size, form), payload_of(x.size, form)
    natural_dithering.dither(x, *payload, form=form, noise=noise, residual=ours, scale=scale)
    with np.errstate(all="ignore"):
        reference.dither(x, *due, form=form, noise=noise, residual=specified, scale=scale)
    assert same_bits(payload[0], due[0])
    assert same_bits(payload[1], due[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@settings(max_examples=80)
@given(
    gradients(sizes=(*SIZES, 2500, 10_007)),
    st.sampled_from(KINDS),
    forms,
    noises,
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_dither_equals_reference(
    x: F32, kind: str, form: Dithering, noise: Noise, seed: int | None, scale: float
) -> None:
    assert_dither_equals_reference(as_kind(x, kind), form, noise, residual_for(x, seed), scale)


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize(("levels", "block"), [(7, 64), (7, 512), (64, 1000), (3, 2048)])
def test_more_blocks_than_teams_in_any_order(levels: int, block: int, norm: Any) -> None:
    n = 90_003 if block > 64 else 20_003
    form = Dithering(levels=levels, block=block, norm=norm)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
        with running_on(Emulated(seed)):
            assert_dither_equals_reference(
                x, form, NOISE._replace(start=4711 * seed), x[::-1].copy() if seed else None
            )


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("block", [4104, 8192, 8200, 1 << 15])
def test_blocks_that_shared_memory_does_not_hold(block: int, norm: Any) -> None:
    random = np.random.default_rng(block)
    x = (random.standard_normal(40_003) * 10.0 ** random.integers(-9, 9, 40_003)).astype(np.float32)
    form = Dithering(levels=24, block=block, norm=norm)
    for seed in range(2):
        with running_on(Emulated(seed)):
            assert_dither_equals_reference(x, form, NOISE, x[::-1].copy() if seed else None)


def test_a_block_of_the_largest_numbers_and_one_of_the_smallest() -> None:
    ends = np.float32([3.4028235e38, -3.4028235e38, 1e-45, -1e-45, 0.0, -0.0, 1e-38, 1.0])
    for norm in ("l2", "max"):
        form = Dithering(levels=127, block=8, norm=norm)
        assert_dither_equals_reference(np.repeat(ends, 8), form, NOISE, np.zeros(64, np.float32))


@settings(max_examples=60)
@given(
    st.sampled_from((0, 1, 7, 9, 64, 515, 2500, 10_007)),
    forms,
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
    st.integers(0, 99),
)
def test_undither_of_any_bytes_equals_reference(
    n: int, form: Dithering, weight: float, add: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    codes = any_bytes(random, form.code_bytes(n), seed % 4)
    norms = any_units(random, block_count(n, form.block), seed % 3)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    natural_dithering.undither(codes, norms, ours, form=form, weight=weight, add=add)
    with np.errstate(all="ignore"):
        reference.undither(codes, norms, specified, form=form, weight=weight, add=add)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("block", [64, 512, 1032])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, shift: int
) -> None:
    form = Dithering(levels=7, block=block)
    whole = np.random.default_rng(block).standard_normal(2101 + 2 * shift).astype(np.float32)
    inner, x = slice(shift, -shift), whole[shift:-shift]
    codes = poisoned(form.code_bytes(x.size) + 2 * shift, np.uint8)
    norms = poisoned(block_count(x.size, block) + 2 * shift, np.float32)
    due, left, wide = payload_of(x.size, form), whole.copy(), whole.copy()
    specified, decoded = x.copy(), x.copy()
    untouched = poisoned(shift, np.uint8), poisoned(shift, np.float32)
    natural_dithering.dither(
        x, codes[inner], norms[inner], form=form, noise=NOISE, residual=left[inner]
    )
    reference.dither(x, *due, form=form, noise=NOISE, residual=specified)
    natural_dithering.undither(codes[inner], norms[inner], wide[inner], form=form)
    reference.undither(*due, decoded, form=form)
    assert same_bits(codes[inner], due[0])
    assert same_bits(norms[inner], due[1])
    assert same_bits(left[inner], specified)
    assert same_bits(wide[inner], decoded)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(codes[edge], untouched[0])
        assert same_bits(norms[edge], untouched[1])
        assert same_bits(left[edge], whole[edge])
        assert same_bits(wide[edge], whole[edge])
