from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels import return_unsent, scatter_add, select_top_k
from compressa.kernels.cpu._listing import Listing
from compressa.kernels.reference import topk as reference
from compressa.kernels.threads import Team
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


KINDS = (
    "normal",
    "equal",
    "zero",
    "few values",
    "equal bits but the last ten",
    "equal bits but the last twenty",
    "denormal",
    "half zero",
    "one in a thousand",
    "one-hot",
    "sorted",
    "large ones close together",
    "periodic",
)


def awkward(kind: str, n: int = 30_000) -> F32:
    random = np.random.default_rng(7)
    x, places = random.standard_normal(n), np.arange(n)
    ten, twenty = (1.0 + (places * 7919 % 2**bits) * 2.0**-23 for bits in (10, 19))
    made = {
        "equal": np.full(n, -1.5),
        "zero": np.zeros(n),
        "few values": np.round(x),
        "equal bits but the last ten": np.copysign(ten, x),
        "equal bits but the last twenty": twenty,
        "denormal": x * 1e-42,
        "half zero": np.where(places % 2, x, 0),
        "one in a thousand": np.where(random.random(n) < 0.001, x, 0),
        "one-hot": np.where(places == n // 2, 3, 0),
        "sorted": np.sort(x),
        "large ones close together": np.where(places < n // 20, x, 1e-3 * x),
        "periodic": np.where(places % 1024, x, 100 * x),
    }
    return made.get(kind, x).astype(np.float32)


@pytest.mark.parametrize("n", [30_000, 150_000])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_reference_whatever_a_sample_says(kind: str, n: int) -> None:
    for k in (1, n // 1000, n // 100, n // 2 + 1, n - 1):
        assert same_selection(awkward(kind, n), k, (None, 1.0))
        assert same_selection(awkward(kind, n), k, (3, 1.0))


@pytest.mark.parametrize(
    ("kind", "looks"),
    [("normal", 0), ("periodic", 0), ("sorted", 1), ("equal", 1), ("large ones close together", 1)],
)
def test_only_what_misleads_the_sample_or_is_crowded_is_looked_at_again(
    kind: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys, survey = [], Listing._survey
    monkeypatch.setattr(Listing, "_survey", lambda *a: surveys.append(a) or survey(*a))
    assert same_selection(awkward(kind, 1_500_000), 15_000, (None, 1.0))
    assert len(surveys) == looks


@pytest.mark.parametrize("kind", ["normal", "few values", "equal", "large ones close together"])
def test_the_bits_do_not_depend_on_threads(kind: str) -> None:
    x = awkward(kind, 700_001)
    alone, shared = (residual_for(x, 5) for _ in range(2))
    expected = selected(select_top_k, x, 7000, alone)
    with ThreadPoolExecutor(3) as pool, Team(pool, 3).enlisted():
        result = selected(select_top_k, x, 7000, shared)
    assert all(same_bits(a, b) for a, b in zip(result, expected, strict=True))
    assert same_bits(alone, shared)


@pytest.mark.parametrize("n", [30_000, 150_000])
@pytest.mark.parametrize("place", [0, 70, 29_999])
def test_one_value_that_is_not_finite_undoes_a_large_selection(n: int, place: int) -> None:
    x = awkward("normal", n)
    x[place] = np.inf
    assert same_selection(x, n // 100, (3, 1.0))


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
@pytest.mark.parametrize("n", [0, 1, 1031, 150_000])
def test_16_bit_gradients_are_widened_exactly(dtype: type, n: int) -> None:
    wide = awkward("normal", n)
    narrow = (wide.view(np.uint32) >> 16).astype(np.uint16) if dtype is np.uint16 else wide
    narrow = narrow.astype(dtype)
    assert same_selection(narrow, n // 100, (None, 1.0))
    assert same_selection(narrow, n // 100, (3, 65536.0))


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
    assert np.isnan(values[0])
    assert not values[1:].any()
    assert indices.tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(residual == 0.5).tolist() == [0, 13]
    assert (np.delete(residual, [0, 13]) == 1.5).all()


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
    with pytest.raises(ValueError, match="not all of the 2 indices are below 4"):
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


def test_return_unsent_of_nothing_leaves_every_bit() -> None:
    residual, indices = np.array([-0.0, 1.0], np.float32), np.array([0, 1], np.uint32)
    values = np.array([0.0, 2.0], np.float32)
    for function in (return_unsent, reference.return_unsent):
        left = residual.copy()
        function(left, indices, values, values.copy())
        assert left.tobytes() == residual.tobytes()


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
