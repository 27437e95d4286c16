"""Cosine transforms: orthonormal, the largest coefficients are kept, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from compressa.kernels import ChunkForm, keep_coefficients
from compressa.kernels.dct import basis
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, KINDS, gradients, residual_for
from test_kernels_dct import CHUNKS, decoded, forms, kept

moderate = gradients(specials=FINITE[:4], magnitudes=(0.0, 1e-10, 1.0, 1e10))


def square(x: F32) -> float:
    return float((x.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("chunk", CHUNKS)
def test_basis_is_the_orthonormal_cosine_transform(chunk: int) -> None:
    table, turned = basis(chunk)
    j, i = np.arange(chunk)[:, None], np.arange(chunk)[None, :]
    cosines = np.cos(np.pi * ((2 * i + 1) * j % (4 * chunk)) / (2 * chunk))
    due = np.sqrt(np.where(j == 0, 1.0, 2.0) / chunk) * cosines
    np.testing.assert_allclose(table, due, rtol=0, atol=4e-15)
    np.testing.assert_allclose(table @ table.T, np.eye(chunk), rtol=0, atol=1e-14)
    assert np.array_equal(turned, table.T)
    assert (table != 0).all()  # a NaN or an infinity reaches every coefficient


@pytest.mark.parametrize("chunk", CHUNKS)
def test_basis_is_that_of_exact_steps_rounded_once_each(chunk: int) -> None:
    def rounded(x: Fraction) -> Fraction:
        return Fraction(x.numerator / x.denominator)  # Python rounds this division correctly

    def root(x: Fraction) -> Fraction:
        scale = 1 << 120
        near = Fraction(int(np.sqrt(float(x)) * 2**53), 2**53)
        for _ in range(4):
            near = (near + x / near) / 2
            near = Fraction(round(near * scale), scale)
        return rounded(near)

    cosines, half = {0: Fraction(1), chunk: Fraction(0)}, root(Fraction(1, 2))
    step = chunk
    while step > 1:
        for low in range(0, chunk, step):
            both = rounded(cosines[low] + cosines[low + step])
            cosines[low + step // 2] = rounded(both / (2 * half))
        step, half = step // 2, root(rounded(1 + half) / 2)
    unit = rounded(Fraction(2, chunk))
    first = [float(rounded(root(unit) * cosines[2 * i + 1])) for i in range(chunk // 2)]
    assert basis(chunk)[0][1, : chunk // 2].tolist() == first


@given(moderate, st.sampled_from(CHUNKS))
def test_all_coefficients_have_the_length_of_the_vector(x: F32, chunk: int) -> None:
    form = ChunkForm(chunk=chunk, kept=chunk)
    values, positions = kept(keep_coefficients, x, form)
    assert square(values) == pytest.approx(square(x), rel=2.0**-22, abs=1e-70)
    out = decoded(values, positions, x.size, form)
    assert square(out - x) <= (2.0**-22) ** 2 * square(x) + 1e-70


@given(moderate, forms)
def test_keeps_the_largest_coefficients_of_each_chunk(x: F32, form: ChunkForm) -> None:
    whole = replace(form, kept=form.tile_elems)
    every, _ = kept(keep_coefficients, x, whole)
    some, _ = kept(keep_coefficients, x, form)
    for all_of, chosen in zip(
        every.reshape(-1, form.tile_elems), some.reshape(-1, form.kept), strict=True
    ):
        largest = np.sort(np.abs(all_of))[form.tile_elems - form.kept :]
        assert np.array_equal(np.sort(np.abs(chosen)), largest)


@given(moderate, forms)
def test_is_a_contraction_with_the_share_that_is_kept(x: F32, form: ChunkForm) -> None:
    out = decoded(*kept(keep_coefficients, x, form), x.size, form)
    share = (np.sqrt(1 - form.kept / form.tile_elems) + 2.0**-22) ** 2
    assert square(out - x) <= share * square(x) + 1e-70


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (16, 48), (50, 70), (7, 200)])
def test_tiles_of_a_matrix_are_transformed_along_both_dimensions(rows: int, columns: int) -> None:
    matrix = np.random.default_rng(rows).standard_normal((rows, columns))
    form = ChunkForm(chunk=16, kept=256, columns=columns)
    values, _ = kept(keep_coefficients, matrix.astype(np.float32).ravel(), form)
    padded = np.zeros((-(-rows // 16) * 16, -(-columns // 16) * 16))
    padded[:rows, :columns] = matrix
    table, _ = basis(16)
    tiles = padded.reshape(padded.shape[0] // 16, 16, -1, 16).swapaxes(1, 2)
    due = table @ tiles @ table.T
    np.testing.assert_allclose(values.reshape(due.shape), due, rtol=0, atol=4e-6)


def test_equal_coefficients_are_taken_from_the_front() -> None:
    form, x = ChunkForm(chunk=16, kept=2), np.zeros(16, np.float32)
    values, positions = kept(keep_coefficients, x, form)
    assert values.tolist() == [0.0, 0.0]
    assert positions.tolist() == [0x10]


def test_a_tie_goes_to_the_lower_position() -> None:
    # element 0 alone: c[j] = T[j, 0]; elements 0 and 15 alike: even positions only, odd ones are 0
    x = np.zeros(16, np.float32)
    x[[0, 15]] = 1.0
    values, positions = kept(keep_coefficients, x, ChunkForm(chunk=16, kept=10))
    # ten positions take a bitmap of two bytes: all eight even ones, then of equal ones 1 and 3
    assert [e for e in range(16) if positions[e // 8] >> e % 8 & 1] == [
        0,
        1,
        2,
        3,
        *range(4, 16, 2),
    ]
    assert values[1] == values[3] == 0.0


@given(moderate, forms, st.integers(0, 99), st.sampled_from((1.0, 1024.0)), st.sampled_from(KINDS))
def test_nothing_is_lost(x: F32, form: ChunkForm, seed: int, loss_scale: float, sent: str) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    residual /= np.float32(loss_scale)
    p = x + np.float32(loss_scale) * residual
    before = residual.copy()
    values, positions = kept(keep_coefficients, x, form, residual, loss_scale, sent)
    out = decoded(values, positions, x.size, form)
    if np.isnan(out).any():  # float16 holds no coefficient of some tile: all its mass stays
        assert sent == "float16"
        waits = np.isnan(out) & (np.abs(p / np.float32(loss_scale)) <= 2.0**9)
        assert (residual[waits] == (p / np.float32(loss_scale))[waits]).all()
        lost = np.isnan(out) & ~waits
        assert (residual[lost] == before[lost]).all()
        p, out, residual = (some[~np.isnan(out)] for some in (p, out, residual))
    total = out.astype(np.float64) + loss_scale * residual
    assert (np.abs(total - p) <= 2.0**-22 * (np.abs(p) + np.abs(out)) + 1e-38).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [ChunkForm(chunk=16, kept=3), ChunkForm(chunk=16, kept=9)])
def test_overflow_is_seen_and_poisons_one_chunk_only(bad: float, form: ChunkForm) -> None:
    x, residual = np.ones(41, np.float32), np.full(41, 0.01, np.float32)
    x[20] = bad
    out = decoded(*kept(keep_coefficients, x, form, residual), 41, form)
    assert np.isnan(out[16:32]).all()
    assert np.isfinite(np.delete(out, range(16, 32))).all()
    assert (residual[16:32] == np.float32(0.01)).all()
    assert np.isfinite(residual).all()


def test_what_only_coefficients_can_not_hold_is_kept_whole() -> None:
    form, x = ChunkForm(chunk=16, kept=4), np.full(16, 3e38, np.float32)
    residual = np.zeros(16, np.float32)
    values, _ = kept(keep_coefficients, x, form, residual, 256.0)
    assert np.isnan(values).all()
    assert (residual == x / 256).all()


def test_what_no_loss_scale_could_send_is_not_kept() -> None:
    """What is kept whole in vain is NaN in every later step, too."""
    form, x = ChunkForm(chunk=16, kept=4), np.full(16, 3e38, np.float32)
    residual = np.full(16, 0.5, np.float32)
    assert np.isnan(kept(keep_coefficients, x, form, residual)[0]).all()
    assert (residual == 0.5).all()
