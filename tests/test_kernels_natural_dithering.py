from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.natural_dithering import Dithering, dither, undither
from compressa.kernels.reference import natural_dithering as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits

NOISE = Noise(1, 2, 3, 4)
noises = st.builds(
    Noise, st.integers(0, 9), st.just(0), st.integers(0, 9), st.just(1), st.integers(0, 5000)
)
forms = st.builds(
    Dithering,
    levels=st.sampled_from([1, 2, 3, 4, 7, 8, 24, 63, 64, 127]),
    block=st.sampled_from([8, 24, 64, 512]),
    norm=st.sampled_from(["l2", "max"]),
)


def dithered(
    function: Any,
    x: np.ndarray[Any, Any],
    form: Dithering,
    noise: Noise,
    residual: F32 | None = None,
    scale: float = 1.0,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    codes = poisoned(form.code_bytes(x.size), np.uint8)
    norms = poisoned(-(-x.size // form.block), np.float32)
    function(x, codes, norms, form=form, noise=noise, residual=residual, scale=scale)
    return codes, norms


def round_trip(x: F32, form: Dithering, step: int) -> F32:
    out = poisoned(x.size, np.float32)
    undither(*dithered(dither, x, form, NOISE._replace(step=step)), out, form=form)
    return out


@given(
    gradients(), forms, noises, st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
)
def test_dither_equals_reference(
    x: F32, form: Dithering, noise: Noise, keep: tuple[int | None, float]
) -> None:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    payload = dithered(dither, x, form, noise, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = dithered(reference.dither, x, form, noise, specified, keep[1])
    assert same_bits(payload[0], expected[0])
    assert same_bits(payload[1], expected[1])
    assert ours is None or specified is None or same_bits(ours, specified)


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


@given(st.sampled_from([0, 1, 7, 9, 64, 515]), forms, st.integers(0, 99), st.booleans())
def test_undither_of_any_bytes_equals_reference(
    n: int, form: Dithering, seed: int, add: bool
) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, form.code_bytes(n), dtype=np.uint8)
    norms = random.integers(0, 256, 4 * -(-n // form.block), dtype=np.uint8).view(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    undither(codes, norms, ours, form=form, weight=0.3, add=add)
    with np.errstate(all="ignore"):
        reference.undither(codes, norms, specified, form=form, weight=0.3, add=add)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_decodes_to_the_two_levels_beside_each_value(norm: Any) -> None:
    form = Dithering(levels=5, block=64, norm=norm)
    x = np.random.default_rng(3).standard_normal(640).astype(np.float32)
    blocks = x.reshape(-1, 64).astype(np.float64)
    sizes = np.sqrt((blocks**2).sum(1)) if norm == "l2" else np.abs(blocks).max(1)
    unit = np.abs(blocks) / sizes[:, None]
    grid = np.array([0, *(2.0 ** np.arange(-4, 1))])
    above = np.searchsorted(grid, unit * (1 - 1e-6))
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
    payload, out = dithered(dither, x, form, NOISE), poisoned(x.size, np.float32)
    undither(*payload, out, form=form)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        again, threaded = dithered(dither, x, form, NOISE), poisoned(x.size, np.float32)
        undither(*payload, threaded, form=form)
    assert same_bits(payload[0], again[0])
    assert same_bits(payload[1], again[1])
    assert same_bits(out, threaded)


@pytest.mark.parametrize("wrong", [{"levels": 0}, {"levels": 128}, {"block": 12}, {"block": 0}])
def test_impossible_forms_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Dithering(**{"levels": 7, "block": 64, **wrong})
