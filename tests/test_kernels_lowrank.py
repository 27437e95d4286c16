from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels.lowrank import (
    keep_directions,
    left_factor,
    low_rank_product,
    orthonormalize,
    right_factor,
    split_low_rank,
)
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


@given(
    thin(),
    st.sampled_from((0, 1, 7, 64, 65)),
    st.sampled_from(SCALES),
    st.booleans(),
)
def test_split_equals_reference(p: F32, columns: int, scale: float, held: bool) -> None:
    q, m, residual = operands(p, columns)
    ours, specified = (m.copy(), residual.copy()), (m.copy(), residual.copy())
    with np.errstate(all="ignore"):
        split_low_rank(ours[0], p, q, ours[1], scale, held=held)
        reference.split_low_rank(specified[0], p, q, specified[1], scale, held=held)
    assert same_bits(ours[0], specified[0])
    assert same_bits(ours[1], specified[1])


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
def test_directions_that_vanished_are_not_kept(q: F32) -> None:
    ours, specified = poisoned(q.shape, np.float32), poisoned(q.shape, np.float32)
    assert keep_directions(q, ours) == reference.keep_directions(q, specified)
    assert same_bits(ours, specified)


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
