from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels.lowrank import (
    ALIVE,
    SPOILED,
    ZERO,
    judge_rows,
    keep_directions,
    left_factor,
    low_rank_product,
    orthonormalize,
    right_factor,
    split_low_rank,
)
from compressa.kernels.philox import Noise, random_words
from compressa.kernels.reference import lowrank as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, poisoned, same_bits

shapes = st.tuples(st.sampled_from((0, 1, 2, 5, 15, 16, 17, 40, 300)), st.integers(1, 5))


@st.composite
def thin(draw: st.DrawFn) -> F32:
    shape, seed = draw(shapes), draw(st.integers(0, 999))
    p = np.random.default_rng(seed).standard_normal(shape)
    kind = draw(st.sampled_from(["plain", "parallel", "zero column", "NaN", "Inf", "huge", "tiny"]))
    if kind == "parallel":
        p[:] = p[:, :1]
    elif kind == "zero column":
        p[:, shape[1] // 2] = 0
    elif kind in ("NaN", "Inf") and p.size:
        p[shape[0] // 2, shape[1] // 2] = float(kind)
    elif kind in ("huge", "tiny"):
        p *= 1e37 if kind == "huge" else 1e-43
    return across(p)


def across(p: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> F32:
    """A factor as kernels take it: a vector a row."""
    return np.ascontiguousarray(p.T, dtype=np.float32)


@given(thin())
def test_orthonormalize_equals_reference(p: F32) -> None:
    ours, specified = p.copy(), p.copy()
    orthonormalize(ours)
    with np.errstate(all="ignore"):
        reference.orthonormalize(specified)
    assert same_bits(ours, specified)


@pytest.mark.parametrize(("n", "r"), [(2047, 3), (2049, 3), (5000, 4), (300, 20)])
def test_rows_of_many_blocks_and_many_rows_equal_reference(n: int, r: int) -> None:
    random = np.random.default_rng(n)
    common = random.standard_normal(n)
    p = (common + 1e-4 * random.standard_normal((r, n))).astype(np.float32)
    specified = p.copy()
    orthonormalize(p)
    reference.orthonormalize(specified)
    assert same_bits(p, specified)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize(("n", "r"), [(1, 1), (4, 4), (50, 3), (1000, 8)])
def test_rows_are_orthonormal_also_when_nearly_dependent(n: int, r: int, spread: float) -> None:
    random = np.random.default_rng(n)
    base = random.standard_normal((n, 1))
    p = across(base + spread * random.standard_normal((n, r)))
    before = p.T.astype(np.float64)
    orthonormalize(p)
    q = p.T.astype(np.float64)
    assert np.abs(q.T @ q - np.eye(r)).max() < 1e-6
    missed = before - q @ (q.T @ before)
    assert np.abs(missed).max() < 1e-5 * np.abs(before).max()  # the span is the same


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 5e-6])
def test_rows_may_depend_on_each_other_one_after_the_other(spread: float) -> None:
    random = np.random.default_rng(1)
    own = random.standard_normal((6, 3000))
    p = own.copy()
    p[1:] = own[:-1] + spread * own[1:]
    given = p.astype(np.float32)
    p = given.copy()
    orthonormalize(p)
    q = p.astype(np.float64)
    assert np.abs(q @ q.T - np.eye(6)).max() < 1e-6
    assert np.abs(given - (given @ q.T) @ q).max() < 1e-6 * np.abs(given).max()


def test_dependent_rows_become_zero() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 200, 1)).astype(np.float32)
    p = across(np.hstack([a, 3 * a, np.zeros_like(a), b, a - 2 * b]))
    orthonormalize(p)
    assert (p.any(axis=1) == [True, False, False, True, False]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_overflow_spreads_over_its_row_and_all_later_ones(bad: float) -> None:
    p = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    p[1, 4] = bad
    orthonormalize(p)
    assert np.isfinite(p[0]).all()
    assert np.isnan(p[1:]).all()


def operands(p: F32, columns: int) -> tuple[F32, F32, F32]:
    """A right factor, a gradient and a residual that fit a left factor."""
    random, rows = np.random.default_rng(1), p.shape[1]
    shapes = (p.shape[0], columns), (rows, columns), (rows, columns)
    q, x, residual = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return q, x, residual


@given(thin(), st.sampled_from((0, 1, 7, 64, 65)))
def test_product_equals_reference(p: F32, columns: int) -> None:
    q, x, _ = operands(p, columns)
    ours, specified = poisoned(x.shape, np.float32), poisoned(x.shape, np.float32)
    with np.errstate(all="ignore"):
        low_rank_product(p, q, ours)
        reference.low_rank_product(p, q, specified)
    assert same_bits(ours, specified)


def judged(factor: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """The reference's verdicts."""
    verdicts = poisoned(factor.shape[:1], np.uint32)
    reference.judge_rows(factor, verdicts)
    return verdicts


@given(
    thin(),
    st.sampled_from((0, 1, 7, 64, 65)),
    st.sampled_from(SCALES),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_split_equals_reference(
    p: F32, columns: int, scale: float, held: bool, is_judged: bool, other: bool
) -> None:
    q, m, residual = operands(p, columns)
    ours, specified = (m.copy(), residual.copy()), (m.copy(), residual.copy())
    out = (p[::-1].copy(), q + np.float32(1)) if other else None
    more = {"held": held, "verdicts": judged(p) if is_judged else None, "out": out}
    with np.errstate(all="ignore"):
        split_low_rank(ours[0], p, q, ours[1], scale, **more)
        reference.split_low_rank(specified[0], p, q, specified[1], scale, **more)
    assert same_bits(ours[0], specified[0])
    assert same_bits(ours[1], specified[1])


@pytest.mark.parametrize("held", [False, True])
def test_a_spoiled_factor_spoils_the_product_and_leaves_the_residual(held: bool) -> None:
    p, q = np.ones((2, 30), np.float32), np.ones((2, 40), np.float32)
    m, residual = np.ones((30, 40), np.float32), np.full((30, 40), 3, np.float32)
    verdicts = np.array([ALIVE, SPOILED], np.uint32)
    split_low_rank(m, p, q, residual, 2.0, held=held, verdicts=verdicts)
    assert np.isnan(m).all()
    assert (residual == 3).all()
    low_rank_product(p, q, residual, verdicts)
    assert np.isnan(residual).all()


@given(
    thin(),
    st.sampled_from((0, 1, 7, 64, 65, 2100)),
    st.sampled_from(SCALES),
    st.booleans(),
)
def test_factors_equal_reference(p: F32, columns: int, scale: float, kept: bool) -> None:
    q, x, residual = operands(p, columns)
    more = {"residual": residual if kept else None, "scale": scale}
    for ours, theirs, factor, like in (
        (left_factor, reference.left_factor, q, p),
        (right_factor, reference.right_factor, p, q),
    ):
        m, specified = x.copy(), x.copy()
        found, expected = (poisoned(like.shape, np.float32) for _ in range(2))
        ours(m, factor, found, **more)
        with np.errstate(all="ignore"):
            theirs(specified, factor, expected, **more)
        assert same_bits(m, specified)
        assert same_bits(found, expected)


@pytest.mark.parametrize("shape", [(1030, 600), (300, 2300)])
def test_bits_do_not_depend_on_the_number_of_threads(shape: tuple[int, int]) -> None:
    random, r = np.random.default_rng(3), 5
    x, residual = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    p, q = (random.standard_normal((r, n)).astype(np.float32) for n in shape)
    results = []
    with ThreadPoolExecutor(3) as pool:
        for threads in (1, 3):
            found = [np.empty_like(p), np.empty_like(q), x.copy(), residual.copy()]
            with Team(pool, threads).enlisted():
                left_factor(found[2], q, found[0], residual=residual, scale=2.0)
                right_factor(found[2], p, found[1], residual=residual, scale=2.0)
                split_low_rank(found[2], p, q, found[3], 2.0)
            results.append(found)
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(70, 5000), (5000, 70)])
def test_factors_are_the_products(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(4)
    x, residual = (random.standard_normal(shape) for _ in range(2))
    p, q = (random.standard_normal((3, n)) for n in shape)
    m, single = x + 2.0 * residual, [a.astype(np.float32) for a in (x, residual, p, q)]
    left, right = np.empty_like(single[2]), np.empty_like(single[3])
    left_factor(single[0], single[3], left, residual=single[1], scale=2.0)
    right_factor(single[0], single[2], right)
    np.testing.assert_allclose(single[0], m, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(left, q @ m.T, atol=3e-4)
    np.testing.assert_allclose(right, p @ m, atol=3e-4)


@given(thin())
def test_verdicts_equal_reference(factor: F32) -> None:
    found = poisoned(factor.shape[:1], np.uint32)
    judge_rows(factor, found)
    assert same_bits(found, judged(factor))


def test_a_row_lives_by_one_element_and_minus_zero_is_none() -> None:
    factor = np.full((5, 999), -0.0, np.float32)
    factor[1:4, 998] = 1e-45, np.nan, -np.inf
    verdicts = poisoned(5, np.uint32)
    judge_rows(factor, verdicts)
    assert (verdicts == [ZERO, ALIVE, SPOILED, SPOILED, ZERO]).all()


NOISE = Noise(seed=3, stream=2**40, step=-1, parameter=5)


@given(thin(), st.sampled_from((0, 1, 2**40 + 3)))
def test_kept_directions_equal_reference(factor: F32, start: int) -> None:
    ours, specified = poisoned(factor.shape, np.float32), poisoned(factor.shape, np.float32)
    verdicts, noise = judged(factor), NOISE._replace(start=start)
    keep_directions(factor, ours, verdicts, noise)
    reference.keep_directions(factor, specified, verdicts, noise)
    assert same_bits(ours, specified)


def test_directions_that_vanished_are_drawn_anew_by_the_numbers_of_their_places() -> None:
    factor = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32)
    factor[1] = 0
    kept, verdicts = poisoned(factor.shape, np.float32), poisoned(3, np.uint32)
    judge_rows(factor, verdicts)
    keep_directions(factor, kept, verdicts, NOISE)
    words = np.empty(17, np.uint32)
    random_words(words, **NOISE._replace(start=17)._asdict())
    due = (words.astype(np.float64) - 2**31) / 2**31
    assert same_bits(kept[::2], factor[::2])
    assert same_bits(kept[1], due.astype(np.float32))
    keep_directions(factor, factor, verdicts, NOISE)
    assert same_bits(kept, factor)


def test_no_direction_of_a_spoiled_factor_is_kept() -> None:
    factor = np.ones((3, 17), np.float32)
    kept = poisoned(factor.shape, np.float32)
    before = kept.copy()
    keep_directions(factor, kept, np.array([ALIVE, ZERO, SPOILED], np.uint32), NOISE)
    assert same_bits(kept, before)


def test_split_conserves_the_matrix() -> None:
    random = np.random.default_rng(2)
    p, q, m = (random.standard_normal(s).astype(np.float32) for s in ((2, 30), (2, 40), (30, 40)))
    product, residual = m.copy(), poisoned(m.shape, np.float32)
    split_low_rank(product, p, q, residual, 64.0)
    np.testing.assert_allclose(product, p.T @ q, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(product + 64 * residual.astype(np.float64), m, atol=2e-6)


def test_a_residual_that_is_held_back_stays_and_takes_in_what_the_gradient_lacks() -> None:
    random = np.random.default_rng(2)
    p, q, m = (random.standard_normal(s).astype(np.float32) for s in ((2, 30), (2, 40), (30, 40)))
    before, product = random.standard_normal(m.shape).astype(np.float32), m.copy()
    residual = before.copy()
    split_low_rank(product, p, q, residual, 4.0, held=True)
    np.testing.assert_allclose(product + 4.0 * (residual - before), m, atol=2e-5)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [((2, 3), (3, 4), "q must"), ((0, 3), (0, 4), "one row"), ((3,), (1, 4), "two dimensions")],
)
def test_refuses_shapes_that_do_not_fit(
    p: tuple[int, ...], q: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        low_rank_product(
            np.zeros(p, np.float32), np.zeros(q, np.float32), np.zeros((3, 4), np.float32)
        )
