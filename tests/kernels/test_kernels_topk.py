from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import reference, return_unsent, scatter_add, select_top_k
from compressa.kernels._selection import sample_indices
from compressa.kernels.cpu._listing import Listing
from compressa.kernels.cuda._device import device
from compressa.kernels.cuda._select import LEAST_SAMPLED, SAMPLE, select_largest
from emulated_cuda import on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    KINDS,
    MAGNITUDES,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    kinds,
    poisoned,
    residual_for,
    same_bits,
)

Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
fractions = st.sampled_from((0.0, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0))
LARGER = (2047, 2048, 2049, 4099, 16383, 16385, 70_001)


def selected(
    function: object, x: F32, k: int, residual: F32 | None, loss_scale: float = 1.0
) -> tuple[np.ndarray, F32]:
    indices, values = poisoned(k, np.uint32), poisoned(k, np.float32)
    function(x, k, indices, values, residual=residual, loss_scale=loss_scale)  # type: ignore[operator]
    return indices, values


def check_selection(x: Array, k: int, keep: Keep = (3, 1.0), **how: Any) -> None:
    residual = residual_for(x.astype(np.float32), keep[0])

    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        return [*selected(kernels.select_top_k, x, k, left, keep[1]), left]

    alike("topk", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=166)
@given(gradients(), kinds, fractions, feedback)
def test_equals_reference(x: F32, kind: str, fraction: float, keep: Keep) -> None:
    check_selection(as_kind(x, kind), int(np.ceil(fraction * x.size)), keep)


@on_every_backend
@settings(max_examples=25)
@given(gradients(sizes=LARGER), st.sampled_from(KINDS), fractions, feedback)
def test_selection_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, fraction: float, keep: Keep
) -> None:
    check_selection(as_kind(x, kind), int(np.ceil(fraction * x.size)), keep)


AWKWARD = (
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
    "heavy tails",
)


def awkward(kind: str, n: int = 30_000) -> F32:
    random = np.random.default_rng(7)
    x, indices = random.standard_normal(n), np.arange(n)
    ten, twenty = (1.0 + (indices * 7919 % 2**bits) * 2.0**-23 for bits in (10, 19))
    made = {
        "equal": np.full(n, -1.5),
        "zero": np.zeros(n),
        "few values": np.round(x),
        "equal bits but the last ten": np.copysign(ten, x),
        "equal bits but the last twenty": twenty,
        "denormal": x * 1e-42,
        "half zero": np.where(indices % 2, x, 0),
        "one in a thousand": np.where(random.random(n) < 0.001, x, 0),
        "one-hot": np.where(indices == n // 2, 3, 0),
        "sorted": np.sort(x),
        "large ones close together": np.where(indices < n // 20, x, 1e-3 * x),
        "periodic": np.where(indices % 1024, x, 100 * x),
        "heavy tails": np.clip(random.standard_t(0.5, n), -1e38, 1e38),
    }
    return made.get(kind, x).astype(np.float32)


@on_every_backend
@pytest.mark.parametrize("kind", AWKWARD)
def test_equals_reference_whatever_a_sample_says(kind: str, sampled_early: int) -> None:
    for n in (sampled_early - 1, sampled_early + 777):
        x = awkward(kind, n)
        for k in (0, 1, n // 1000, n // 100, n // 2 + 1, n - 1, n):
            check_selection(x, k, (None if k % 2 else 3, 1.0))


@on_every_backend
def test_equals_reference_of_as_many_as_a_sample_is_drawn_of() -> None:
    for n in (LEAST_SAMPLED - 1, LEAST_SAMPLED):
        check_selection(awkward("normal", n), n // 100)


@on_every_backend
@pytest.mark.parametrize("n", [30_000, 150_000])
@pytest.mark.parametrize("kind", AWKWARD)
def test_equals_reference_in_one_piece_and_in_several(kind: str, n: int) -> None:
    x = awkward(kind, n)
    for k in (1, n // 1000, n // 100, n // 2 + 1, n - 1):
        check_selection(x, k, (None, 1.0), large=True)
        check_selection(x, k, (3, 1.0), large=True)


@pytest.mark.parametrize(
    ("kind", "looks"),
    [("normal", 0), ("periodic", 0), ("sorted", 1), ("equal", 1), ("large ones close together", 1)],
)
def test_only_what_misleads_the_sample_or_is_crowded_is_looked_at_again(
    kind: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys, survey = [], Listing._survey
    monkeypatch.setattr(Listing, "_survey", lambda *a: surveys.append(a) or survey(*a))
    x, k = awkward(kind, 1_500_000), 15_000
    found = selected(select_top_k, x, k, None)
    with reference():
        due = selected(select_top_k, x, k, None)
    assert all(same_bits(one, other) for one, other in zip(found, due, strict=True))
    assert len(surveys) == looks


def surveys(x: F32, k: int) -> int:
    """How many times candidates are counted in the whole vector on a GPU."""
    out = poisoned(k, np.uint32), poisoned(k, np.float32)
    state = select_largest(x, 0.0, *out, None, 1.0, fixed=True).state
    return device().read(state[1:2])


@on_emulated_cuda
def test_a_sample_that_misleads_is_followed_by_a_second_survey() -> None:
    n, k = 100_003, 500
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    seen = sample_indices(n, SAMPLE)
    too_high, too_low = x.copy(), x.copy()
    too_high[seen] *= 1e6  # few others are as large as the sample says
    too_low[seen] *= 1e-6  # and many are larger
    assert surveys(x, k) == 1
    for one in (too_high, too_low):
        assert surveys(one, k) == 2
        for count in (1, k, 20 * k):
            check_selection(one, count)
            check_selection(one, count, (None, 3.0))


@pytest.mark.parametrize("kind", ["normal", "few values", "equal", "large ones close together"])
def test_the_bits_do_not_depend_on_threads(kind: str) -> None:
    x = awkward(kind, 700_001)

    def taken() -> list[Array | None]:
        left = residual_for(x, 5)
        return [*selected(select_top_k, x, 7000, left), left]

    alike_in_threads(taken)


@on_every_backend
def test_the_order_of_threads_does_not_matter(sampled_early: int) -> None:
    for kind in ("normal", "few values", "heavy tails"):
        check_selection(awkward(kind, sampled_early + 999), 700, orders=range(4))
    indices = np.random.default_rng(0).integers(0, 300, 3000, dtype=np.uint32)
    check_sum(indices, 301, 0, orders=range(4))


@on_every_backend
@pytest.mark.parametrize("n", [3, 2049, None])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1, -1])
def test_one_value_that_is_not_finite_undoes_a_selection(
    n: int | None, bad: float, index: int, sampled_early: int
) -> None:
    n = n or sampled_early + 5
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    x[index] = bad
    for k in (0, 1, n // 2, n):
        check_selection(x, k)
        check_selection(x, k, (None, 3.0))


@on_every_backend
@pytest.mark.parametrize("n", [30_000, 150_000])
@pytest.mark.parametrize("index", [0, 70, 29_999])
def test_one_value_that_is_not_finite_undoes_a_large_selection(n: int, index: int) -> None:
    x = awkward("normal", n)
    x[index] = np.inf
    check_selection(x, n // 100, large=True)


@on_every_backend
@pytest.mark.parametrize("loss_scale", [65536.0, 3.0])
def test_what_overflows_in_units_of_the_loss_is_kept(loss_scale: float) -> None:
    x = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    residual = np.full(x.size, 1e30, np.float32)
    residual[7] = np.float32(3e38) / np.float32(loss_scale)
    p = (x * np.float32(2.0**100)).astype(np.float32)

    def run(kernels: Any) -> list[Array]:
        left = residual.copy()
        return [*selected(kernels.select_top_k, p, 90, left, loss_scale), left]

    alike("topk", run)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    whole = as_kind(np.random.default_rng(shift).standard_normal(5003).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    inner, k = slice(shift, -shift), 700

    def run(kernels: Any) -> list[Array]:
        (all_indices, indices), left = odd(poisoned(k, np.uint32), shift), kept.copy()
        all_values, values = odd(poisoned(k, np.float32), shift)
        options: dict[str, Any] = {"residual": left[inner], "loss_scale": 3.0}
        kernels.select_top_k(whole[inner], k, indices, values, **options)
        return [all_indices, all_values, left]

    alike("topk", run)


@on_every_backend
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("n", [0, 1, 1031, 150_000])
def test_16_bit_gradients_are_widened_exactly(kind: str, n: int) -> None:
    narrow = as_kind(awkward("normal", n), kind)
    check_selection(narrow, n // 100, (None, 1.0), large=n == 150_000)
    check_selection(narrow, n // 100, (3, 65536.0), large=n == 150_000)


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


def check_sum(indices: Array, n: int, seed: int, weight: float = -3.3, **how: Any) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal(indices.size).astype(np.float32)
    before = random.standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[F32]:
        out = before.copy()
        kernels.scatter_add(indices, values, out, weight=weight)
        return [out]

    alike("topk", run, **how)


@on_every_backend
@given(st.sampled_from(SIZES), st.integers(0, 99), st.sampled_from((1.0, 0.25, -3.3)))
def test_scatter_add_equals_reference_with_repeated_indices(
    k: int, seed: int, weight: float
) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 2 * k + 20))
    check_sum(random.integers(0, n, k, dtype=np.uint32), n, seed, weight)


@on_every_backend
@pytest.mark.parametrize("k", [16_384, 16_385])
def test_scatter_add_sees_one_index_that_is_out_of_order_wherever_it_is(k: int) -> None:
    n = 3 * k
    increasing = np.sort(np.random.default_rng(k).permutation(n)[:k]).astype(np.uint32)
    check_sum(increasing, n, 1)
    for index in (1, k // 2, k - 1):
        repeated = increasing.copy()
        repeated[index] = repeated[index - 1]
        check_sum(repeated, n, 2)


def test_scatter_add_with_a_bad_index_writes_nothing() -> None:
    out = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="not all of the 2 indices are below 4"):
        scatter_add(np.array([0, 4], np.uint32), np.ones(2, np.float32), out)
    assert (out == 0).all()


def check_return(
    residual: F32, indices: Array, exact: F32, sent: F32, loss_scale: float = 1.0
) -> F32:
    def run(kernels: Any) -> list[F32]:
        left = residual.copy()
        kernels.return_unsent(left, indices, exact, sent, loss_scale=loss_scale)
        return [left]

    found: F32 = alike("topk", run)[0]
    return found


@on_every_backend
@given(st.sampled_from(SIZES), st.integers(0, 99), st.sampled_from(SCALES))
def test_return_unsent_equals_reference(k: int, seed: int, loss_scale: float) -> None:
    random = np.random.default_rng(seed)
    exact = (random.standard_normal(k) * 50_000).astype(np.float32)
    exact[::3] = 0.5  # of which nothing is lost, so that the residual's -0 stays
    exact[random.integers(0, max(k, 1), min(k, 3))] = random.choice([np.nan, np.inf, 1e-45])
    with np.errstate(all="ignore"):
        sent = exact.astype(np.float16).astype(np.float32)
    indices = random.permutation(3 * k)[:k].astype(np.uint32)
    check_return(
        random.choice([-0.0, 0.7, 5.0], 3 * k).astype(np.float32), indices, exact, sent, loss_scale
    )


@on_every_backend
def test_return_unsent_of_nothing_leaves_every_bit() -> None:
    residual, values = np.array([-0.0, 1.0], np.float32), np.array([0.0, 2.0], np.float32)
    left = check_return(residual, np.array([0, 1], np.uint32), values, values.copy())
    assert left.tobytes() == residual.tobytes()


def test_return_unsent_keeps_what_the_cast_lost_and_stays_finite() -> None:
    residual = np.array([1, 0, 0, 9], np.float32)
    exact = np.array([1.5, 70_000, np.nan], np.float32)
    sent = np.array([1.25, np.inf, np.nan], np.float32)
    return_unsent(residual, np.array([1, 2, 3], np.uint32), exact, sent, loss_scale=2.0)
    assert residual.tolist() == [1, 0.125, 35_000, 9]


@pytest.mark.parametrize("k", [-1, 6])
def test_refuses_k_out_of_range(k: int) -> None:
    x = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match="k must"):
        select_top_k(x, k, np.empty(6, np.uint32), np.empty(6, np.float32))
