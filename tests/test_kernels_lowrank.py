from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import keep_directions, low_rank_product, orthonormalize, split_low_rank
from compressa.kernels.reference import lowrank as reference
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


@given(thin(), st.sampled_from((0, 1, 7, 64, 65)), st.sampled_from(SCALES))
def test_product_and_split_equal_reference(p: F32, columns: int, scale: float) -> None:
    random = np.random.default_rng(1)
    q = random.standard_normal((p.shape[0], columns)).astype(np.float32)
    m = random.standard_normal((p.shape[1], columns)).astype(np.float32)
    with np.errstate(all="ignore"):
        ours, specified = poisoned(m.shape, np.float32), poisoned(m.shape, np.float32)
        low_rank_product(p, q, ours)
        reference.low_rank_product(p, q, specified)
        assert same_bits(ours, specified)
        left, specified_left = poisoned(m.shape, np.float32), poisoned(m.shape, np.float32)
        whole = m.copy()
        split_low_rank(whole, p, q, left, scale)
        reference.split_low_rank(m, p, q, specified_left, scale)
    assert same_bits(whole, ours)
    assert same_bits(m, ours)
    assert same_bits(left, specified_left)


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
