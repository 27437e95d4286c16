from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import Noise, block_count
from compressa.kernels.cuda._work import HELD
from compressa.kernels.natural_dithering import Dithering, dither, undither
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
    same_bits,
)
from sum_cases import any_bytes, any_scales

NOISE = Noise(1, 2, 3, 4)
EDGES = st.sampled_from((0, 1, 1023, 1024, 5000, 2**32 - 3, 2**40 + 511))
noises = st.builds(
    Noise,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.just(1),
    st.integers(0, 5000) | EDGES,
)
forms = st.builds(
    Dithering,
    levels=st.sampled_from([1, 2, 3, 4, 7, 8, 24, 63, 64, 127]),
    block=st.sampled_from([8, 24, 64, 512, 1000, 1024, 1032, 4096, 5000]),
    norm=st.sampled_from(["l2", "max"]),
)
Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))


def dithered(
    function: Any,
    x: np.ndarray[Any, Any],
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    codes = poisoned(form.code_bytes(x.size), np.uint8)
    norms = poisoned(-(-x.size // form.block), np.float32)
    function(x, codes, norms, form=form, noise=noise, residual=residual, loss_scale=loss_scale)
    return codes, norms


def round_trip(x: F32, form: Dithering, step: int) -> F32:
    out = poisoned(x.size, np.float32)
    undither(*dithered(dither, x, form, NOISE._replace(step=step)), out, form=form)
    return out


def check_dither(
    x: Array,
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
    **how: Any,
) -> None:
    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        return [*dithered(kernels.dither, x, form, noise, left, loss_scale), left]

    alike("natural_dithering", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=154)
@given(gradients(sizes=(*SIZES, 2500, 10_007)), kinds, forms, noises, feedback)
def test_dither_equals_reference(
    x: F32, kind: str, form: Dithering, noise: Noise, keep: Keep
) -> None:
    residual, on_cpu = residual_for(x, keep[0]), kind == "float32"
    check_dither(as_kind(x, kind), form, noise, residual, keep[1], on_cpu=on_cpu)


@given(
    gradients(specials=(), magnitudes=(1.0, 1e-6)), forms, st.sampled_from([np.float16, np.uint16])
)
def test_narrow_gradients_give_the_bits_of_wide_ones(x: F32, form: Dithering, dtype: Any) -> None:
    narrow = (
        x.astype(np.float16) if dtype is np.float16 else (x.view(np.uint32) >> 16).astype(dtype)
    )
    wide = narrow.astype(np.uint32) << 16 if dtype is np.uint16 else narrow.astype(np.float32)
    payload = dithered(dither, narrow, form, NOISE)
    expected = dithered(dither, wide.view(np.float32), form, NOISE)
    assert same_bits(payload[0], expected[0])
    assert same_bits(payload[1], expected[1])


@on_every_backend
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize(
    ("levels", "block"), [(7, 64), (7, 512), (127, 1024), (64, 1000), (3, 2048)]
)
@pytest.mark.parametrize("feedback", [False, True])
def test_more_blocks_than_teams_in_any_order(
    levels: int, block: int, norm: Any, feedback: bool
) -> None:
    n = 140_003 if block in HELD[1] else 90_003 if block > 64 else 20_003
    x = np.random.default_rng(block).standard_normal(n).astype(np.float32)
    form, residual = Dithering(levels=levels, block=block, norm=norm), x[::-1].copy()
    noise = NOISE._replace(start=feedback * (4711 if norm == "max" else 4712))
    check_dither(x, form, noise, residual if feedback else None, orders=range(1 + feedback))


@on_every_backend
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("block", [4104, 8192, 8200, 1 << 15])
@pytest.mark.parametrize("feedback", [False, True])
def test_blocks_that_shared_memory_does_not_hold(block: int, norm: Any, feedback: bool) -> None:
    random = np.random.default_rng(block)
    x = (random.standard_normal(40_003) * 10.0 ** random.integers(-9, 9, 40_003)).astype(np.float32)
    form, residual = Dithering(levels=24, block=block, norm=norm), x[::-1].copy()
    check_dither(x, form, NOISE, residual if feedback else None, orders=[feedback])


@on_every_backend
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_a_block_of_the_largest_numbers_and_one_of_the_smallest(norm: Any) -> None:
    ends = np.float32([3.4028235e38, -3.4028235e38, 1e-45, -1e-45, 0.0, -0.0, 1e-38, 1.0])
    form = Dithering(levels=127, block=8, norm=norm)
    check_dither(np.repeat(ends, 8), form, NOISE, np.zeros(64, np.float32))


@on_every_backend
@given(
    st.sampled_from([0, 1, 7, 9, 64, 515, 2500, 10_007]),
    forms,
    st.sampled_from((1.0, 0.25, 0.3, -3.3)),
    st.booleans(),
    st.integers(0, 99),
)
def test_undither_of_any_bytes_equals_reference(
    n: int, form: Dithering, weight: float, add: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    codes = any_bytes(random, form.code_bytes(n), seed % 4)
    scales = any_scales(random, block_count(n, form.block), seed % 3)
    norms = random.integers(0, 256, 4 * scales.size, dtype=np.uint8).view(np.float32)
    before = random.standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[F32]:
        out = before.copy()
        given_norms = norms if seed % 2 else scales
        kernels.undither(codes, given_norms, out, form=form, weight=weight, add=add)
        return [out]

    alike("natural_dithering", run)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize(("block", "n"), [(64, 2101), (512, 8200), (1032, 2101)])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, n: int, shift: int
) -> None:
    form = Dithering(levels=7, block=block)
    whole = np.random.default_rng(block).standard_normal(n + 2 * shift).astype(np.float32)
    x = whole[shift:-shift]

    def there_and_back(kernels: Any) -> list[Array]:
        packed, codes = odd(poisoned(form.code_bytes(x.size), np.uint8), shift)
        all_norms, norms = odd(poisoned(block_count(x.size, block), np.float32), shift)
        (left, residual), (wide, out) = odd(x, shift), odd(x, shift)
        kernels.dither(x, codes, norms, form=form, noise=NOISE, residual=residual)
        kernels.undither(codes, norms, out, form=form)
        return [packed, all_norms, left, wide]

    alike("natural_dithering", there_and_back)


@on_every_backend
@pytest.mark.parametrize("which", ["x", "residual", "codes", "out"])
def test_one_array_at_an_odd_address_is_enough_to_take_no_vectors(which: str) -> None:
    x = np.random.default_rng(5).standard_normal(8193).astype(np.float32)
    form, norms = Dithering(levels=7, block=512), poisoned(17, np.float32)
    codes = poisoned(form.code_bytes(x.size), np.uint8)
    arrays = {"x": x, "residual": x, "codes": codes, "out": x}

    def run(kernels: Any) -> list[Array]:
        there = {name: odd(array, int(name == which)) for name, array in arrays.items()}
        given_x, left, packed, out = (part for _, part in there.values())
        kernels.dither(given_x, packed, norms, form=form, noise=NOISE, residual=left)
        kernels.undither(packed, norms, out, form=form, add=True)
        return [norms, *(whole for whole, _ in there.values())]

    alike("natural_dithering", run)


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_decodes_to_the_two_levels_beside_each_value(norm: Any) -> None:
    form = Dithering(levels=5, block=64, norm=norm)
    x = np.random.default_rng(3).standard_normal(640).astype(np.float32)
    blocks = x.reshape(-1, 64).astype(np.float64)
    sizes = np.sqrt((blocks**2).sum(1)) if norm == "l2" else np.abs(blocks).max(1)
    relative = np.abs(blocks) / sizes[:, None]
    grid = np.array([0, *(2.0 ** np.arange(-4, 1))])
    above = np.searchsorted(grid, relative * (1 - 1e-6))
    for step in range(20):
        out = round_trip(x, form, step).reshape(-1, 64)
        assert (np.sign(out) * np.sign(blocks) >= 0).all()
        level = np.abs(out) / sizes[:, None]
        near = [np.isclose(level, grid[np.maximum(above - k, 0)], rtol=1e-6) for k in (0, 1)]
        assert (near[0] | near[1]).all()


def test_levels_zero_and_one_hot_blocks_come_back_exactly() -> None:
    form = Dithering(levels=4, block=8, norm="max")
    x = np.float32(
        [8, -4, 2, 1, -1, 0, -0.0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1e-45, 0, 0, 0, 0, 0, 0, 0]
    )
    for step in range(20):
        assert (round_trip(x, form, step) == x).all()
        assert (round_trip(x[16:], Dithering(levels=4, block=8), step) == x[16:]).all()


@pytest.mark.parametrize("levels", [1, 3, 7, 30])
def test_is_unbiased_with_the_variance_of_its_two_levels(levels: int) -> None:
    x = np.repeat(np.float32([1.0, 0.7, -0.3, 0.04, -2e-3, 1e-5, 0.5, 0.0]), 64)
    form, draws = Dithering(levels=levels, block=x.size, norm="max"), 1500
    outs = np.array([round_trip(x, form, step) for step in range(draws)], np.float64)
    exact = np.abs(x.astype(np.float64)[::64])
    with np.errstate(divide="ignore"):
        low = np.where(exact > 0, 2.0 ** np.floor(np.log2(exact)), 0.0)
    least = 2.0 ** (1 - levels)
    below, above = np.where(exact < least, 0.0, low), np.where(exact < least, least, 2 * low)
    variance = (above - exact) * (exact - below)
    count = draws * 64
    errors = (np.abs(outs) - np.abs(x)).reshape(draws, 8, 64)
    # Six standard errors; and the probabilities are right to 2**-16 of a step.
    assert (np.abs(errors.mean((0, 2))) <= 6 * np.sqrt(variance / count) + 2**-16 * above).all()
    fourth = np.maximum((errors**4).mean((0, 2)), 1e-30)
    off = np.abs((errors**2).mean((0, 2)) - variance)
    assert (off <= 6 * np.sqrt(fourth / count) + 2**-15 * above**2).all()


def test_what_is_not_finite_spoils_its_block_and_poisons_nothing() -> None:
    form = Dithering(levels=3, block=8)
    x, residual = np.ones(24, np.float32), np.full(24, 0.25, np.float32)
    x[9] = np.nan
    out = poisoned(24, np.float32)
    undither(*dithered(dither, x, form, NOISE, residual), out, form=form)
    assert np.isnan(out[8:16]).all()
    assert np.isfinite(out[:8]).all()
    assert np.isfinite(out[16:]).all()
    assert (residual[8:16] == np.float32(0.25)).all()
    assert np.isfinite(residual).all()


def test_slices_in_threads_give_the_bits_of_the_whole() -> None:
    form = Dithering(levels=7, block=512)
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Array]:
        payload, out = dithered(dither, x, form, NOISE), poisoned(x.size, np.float32)
        undither(*payload, out, form=form)
        return [*payload, out]

    alike_in_threads(there_and_back)


@pytest.mark.parametrize("wrong", [{"levels": 0}, {"levels": 128}, {"block": 12}, {"block": 0}])
def test_impossible_forms_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Dithering(**{"levels": 7, "block": 64, **wrong})
