from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import return_unsent, scatter_add, select_top_k
from compressa.kernels.cpu import topk as cpu
from compressa.kernels.reference import topk as reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    MAGNITUDES,
    SCALES,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)

feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
fractions = st.sampled_from((0.0, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0))


def selected(
    function: object, x: F32, k: int, residual: F32 | None, scale: float = 1.0
) -> tuple[np.ndarray, F32]:
    indices, values = poisoned(k, np.uint32), poisoned(k, np.float32)
    function(x, k, indices, values, residual=residual, scale=scale)  # type: ignore[operator]
    return indices, values


def same_selection(x: F32, k: int, keep: tuple[int | None, float]) -> bool:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    result = selected(select_top_k, x, k, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = selected(reference.select_top_k, x, k, specified, keep[1])
    same = all(same_bits(a, b) for a, b in zip(result, expected, strict=True))
    return same and (ours is None or specified is None or same_bits(ours, specified))


@given(gradients(), fractions, feedback)
def test_equals_reference(x: F32, fraction: float, keep: tuple[int | None, float]) -> None:
    assert same_selection(x, int(np.ceil(fraction * x.size)), keep)


def awkward(kind: str) -> F32:
    random = np.random.default_rng(7)
    x = random.standard_normal(30_000)
    if kind == "equal":
        x[:] = -1.5
    elif kind == "equal bits but the last ten":
        x = np.copysign(1.0 + (np.arange(x.size) * 7919 % 1024) * 2.0**-23, x)
    elif kind == "equal bits but the last twenty":
        x = 1.0 + (np.arange(x.size) * 7919 % 2**19) * 2.0**-23
    elif kind == "denormal":
        x *= 1e-42
    elif kind == "half zero":
        x[::2] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("k", [1, 300, 15_001, 29_999])
@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "equal",
        "equal bits but the last ten",
        "equal bits but the last twenty",
        "denormal",
        "half zero",
    ],
)
def test_equals_reference_where_many_passes_are_needed(kind: str, k: int) -> None:
    assert same_selection(awkward(kind), k, (None, 1.0))
    assert same_selection(awkward(kind), k, (3, 1.0))


def test_the_awkward_cases_do_need_every_number_of_passes() -> None:
    shifts = set()
    for kind in ("normal", "equal bits but the last twenty", "equal bits but the last ten"):
        _, shift, _, _ = cpu._boundary(awkward(kind), None, np.float32(1), 300, 4096)
        shifts.add(shift)
    assert shifts == {20, 10, 0}


@given(gradients(specials=FINITE), fractions)
def test_keeps_the_largest_lowest_index_first(x: F32, fraction: float) -> None:
    k = int(np.ceil(fraction * x.size))
    indices, values = selected(select_top_k, x, k, None)
    expected = sorted(sorted(range(x.size), key=lambda i: (-abs(x[i]), i))[:k])
    assert indices.tolist() == expected
    assert same_bits(values, x[expected])


@given(gradients(specials=FINITE[:6], magnitudes=MAGNITUDES[:-1]), fractions, st.integers(0, 99))
def test_every_element_is_either_sent_or_kept(x: F32, fraction: float, seed: int) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    p = x + residual
    indices, values = selected(select_top_k, x, int(np.ceil(fraction * x.size)), residual)
    assert (residual[indices] == 0).all()
    scatter_add(indices, values, residual)
    assert np.array_equal(residual, p)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_overflow_is_seen_and_leaves_the_residual(bad: float) -> None:
    x, residual = np.ones(20, np.float32), np.full(20, 0.5, np.float32)
    x[13] = bad
    indices, values = selected(select_top_k, x, 4, residual)
    assert np.isnan(values).all()
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    assert indices.max() < 20
    assert (residual == 0.5).all()


@given(st.integers(0, 50), st.integers(0, 99), st.sampled_from((1.0, 0.25, -3.3)))
def test_scatter_add_equals_reference_with_repeated_indices(
    k: int, seed: int, weight: float
) -> None:
    random = np.random.default_rng(seed)
    indices = random.integers(0, 20, k, dtype=np.uint32)
    values = random.standard_normal(k).astype(np.float32)
    ours = random.standard_normal(20).astype(np.float32)
    specified = ours.copy()
    scatter_add(indices, values, ours, weight=weight)
    reference.scatter_add(indices, values, specified, weight=weight)
    assert same_bits(ours, specified)


def test_scatter_add_with_a_bad_index_writes_nothing() -> None:
    out = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="index 4 is not below 4"):
        scatter_add(np.array([0, 4], np.uint32), np.ones(2, np.float32), out)
    assert (out == 0).all()


@given(st.integers(0, 99), st.sampled_from(SCALES))
def test_return_unsent_equals_reference(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    exact = (random.standard_normal(30) * 50_000).astype(np.float32)
    exact[random.integers(0, 30, 2)] = np.nan
    with np.errstate(over="ignore"):
        sent = exact.astype(np.float16).astype(np.float32)
    indices = np.sort(random.permutation(90)[:30]).astype(np.uint32)
    ours, specified = np.full(90, 5.0, np.float32), np.full(90, 5.0, np.float32)
    return_unsent(ours, indices, exact, sent, scale=scale)
    reference.return_unsent(specified, indices, exact, sent, scale=scale)
    assert same_bits(ours, specified)


def test_return_unsent_keeps_what_the_cast_lost_and_stays_finite() -> None:
    residual = np.array([1, 0, 0, 9], np.float32)
    exact = np.array([1.5, 70_000, np.nan], np.float32)
    sent = np.array([1.25, np.inf, np.nan], np.float32)
    return_unsent(residual, np.array([1, 2, 3], np.uint32), exact, sent, scale=2.0)
    assert residual.tolist() == [1, 0.125, 35_000, 9]


@pytest.mark.parametrize("k", [-1, 6])
def test_refuses_k_out_of_range(k: int) -> None:
    x = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match="k must"):
        select_top_k(x, k, np.empty(6, np.uint32), np.empty(6, np.float32))
