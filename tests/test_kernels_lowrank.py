from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import absorb, low_rank_product, orthonormalize, subtract_low_rank
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
def test_product_and_difference_equal_reference(p: F32, columns: int, scale: float) -> None:
    random = np.random.default_rng(1)
    q = random.standard_normal((p.shape[0], columns)).astype(np.float32)
    m = random.standard_normal((p.shape[1], columns)).astype(np.float32)
    with np.errstate(all="ignore"):
        ours, specified = poisoned(m.shape, np.float32), poisoned(m.shape, np.float32)
        low_rank_product(p, q, ours)
        reference.low_rank_product(p, q, specified)
        assert same_bits(ours, specified)
        rest = m.copy()
        subtract_low_rank(rest, p, q, scale)
        reference.subtract_low_rank(m, p, q, scale)
    assert same_bits(rest, m)


@given(
    thin(), st.sampled_from((0, 1, 7, 64, 65)), st.sampled_from(SCALES), st.sampled_from(SCALES),
    st.booleans(), st.sampled_from([0.0, np.nan, np.inf, 1e38]),
)  # fmt: skip
def test_absorb_equals_reference(
    p: F32, columns: int, back: float, scale: float, sent: bool, special: float
) -> None:
    random = np.random.default_rng(3)
    q, residual, gradient = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((p.shape[0], columns), (p.shape[1], columns), (p.shape[1], columns))
    )
    gradient.reshape(-1)[::97] = special
    was = (p, q[:, ::-1].copy()) if sent else None
    ours, specified = residual.copy(), residual.copy()
    p_ours, p_specified = poisoned(p.shape, np.float32), poisoned(p.shape, np.float32)
    with np.errstate(all="ignore"):
        absorb(ours, gradient, was, q, p_ours, back=back, scale=scale)
        reference.absorb(specified, gradient, was, q, p_specified, back=back, scale=scale)
    assert same_bits(ours, specified)
    assert same_bits(p_ours, p_specified)


def test_absorb_is_the_sum_and_the_product() -> None:
    random = np.random.default_rng(2)
    sizes = ((30, 40), (30, 40), (2, 30), (2, 40), (2, 40))
    e, g, was_p, was_q, q = (random.standard_normal(s).astype(np.float32) for s in sizes)
    residual = 64 * e + was_p.T @ was_q
    p = poisoned((2, 30), np.float32)
    absorb(residual, g, (was_p, was_q), q, p, back=64.0, scale=8.0)
    np.testing.assert_allclose(residual, g + 8 * e, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(p, q @ residual.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_absorb_keeps_overflow_out_of_the_residual(bad: float) -> None:
    residual, gradient = np.full((4, 5), 3.0, np.float32), np.ones((4, 5), np.float32)
    gradient[2, 1] = bad
    p = poisoned((1, 4), np.float32)
    absorb(residual, gradient, None, np.ones((1, 5), np.float32), p)
    assert residual[2, 1] == 3.0
    assert (np.delete(residual.reshape(-1), 11) == 4.0).all()
    assert np.isnan(p[0, 2])
    assert np.isfinite(np.delete(p[0], 2)).all()


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
