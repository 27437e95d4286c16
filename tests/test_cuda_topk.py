"""The CUDA kernels of top-k, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import topk
from compressa.kernels.cuda._device import device, running_on
from compressa.kernels.cuda._select import LEAST_SAMPLED, SAMPLE, select_largest
from compressa.kernels.reference import topk as reference
from compressa.kernels.reference._selection import sample_places
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)

pytestmark = on_emulated_cuda

fractions = st.sampled_from((0.0, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
LARGER = (2047, 2048, 2049, 4099, 16383, 16385, 70_001)


def both(x: Any, k: int, keep: tuple[int | None, float]) -> list[tuple[Any, ...]]:
    """Indices, values and residual, by the kernels and as they are specified."""
    results = []
    for module in (topk, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        out = poisoned(k, np.uint32), poisoned(k, np.float32)
        with np.errstate(all="ignore"):
            module.select_top_k(x, k, *out, residual=residual, scale=keep[1])
        results.append((*out, residual))
    return results


def same_selection(x: Any, k: int, keep: tuple[int | None, float] = (3, 1.0)) -> bool:
    ours, specified = both(x, k, keep)
    return all(a is None or same_bits(a, b) for a, b in zip(ours, specified, strict=True))


@given(gradients(), st.sampled_from(KINDS), fractions, feedback)
def test_select_top_k_equals_reference(
    x: F32, kind: str, fraction: float, keep: tuple[int | None, float]
) -> None:
    assert same_selection(as_kind(x, kind), int(np.ceil(fraction * x.size)), keep)


@settings(max_examples=25)
@given(gradients(sizes=LARGER), st.sampled_from(KINDS), fractions, feedback)
def test_select_top_k_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, fraction: float, keep: tuple[int | None, float]
) -> None:
    assert same_selection(as_kind(x, kind), int(np.ceil(fraction * x.size)), keep)


def awkward(kind: str, n: int) -> F32:
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
        "one in a thousand": np.where(random.random(n) < 0.001, x, 0),
        "one-hot": np.where(places == n // 2, 3, 0),
        "sorted": np.sort(x),
        "large ones close together": np.where(places < n // 20, x, 1e-3 * x),
        "heavy tails": np.clip(random.standard_t(0.5, n), -1e38, 1e38),
    }
    return made.get(kind, x).astype(np.float32)


AWKWARD = (
    "normal",
    "equal",
    "zero",
    "few values",
    "equal bits but the last ten",
    "equal bits but the last twenty",
    "denormal",
    "one in a thousand",
    "one-hot",
    "sorted",
    "large ones close together",
    "heavy tails",
)


@pytest.mark.parametrize("kind", AWKWARD)
def test_select_top_k_equals_reference_whatever_the_values_are(kind: str) -> None:
    for n in (30_000, LEAST_SAMPLED + 777):
        x = awkward(kind, n)
        for k in (0, 1, n // 1000, n // 100, n // 2 + 1, n - 1, n):
            assert same_selection(x, k, (None if k % 2 else 3, 1.0))


def surveys(x: F32, k: int) -> int:
    """How many times candidates are counted in the whole vector."""
    out = poisoned(k, np.uint32), poisoned(k, np.float32)
    state = select_largest(x, 0.0, *out, None, 1.0, fixed=True).state
    return device().read(state[1:2])


def test_a_sample_that_misleads_is_followed_by_a_second_survey() -> None:
    n, k = 100_003, 500
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    seen = sample_places(n, SAMPLE)
    too_high, too_low = x.copy(), x.copy()
    too_high[seen] *= 1e6  # few others are as large as the sample says
    too_low[seen] *= 1e-6  # and many are larger
    assert surveys(x, k) == 1
    for one in (too_high, too_low):
        assert surveys(one, k) == 2
        for count in (1, k, 20 * k):
            assert same_selection(one, count)
            assert same_selection(one, count, (None, 3.0))


@pytest.mark.parametrize("n", [3, 2049, LEAST_SAMPLED + 5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_value_that_is_not_finite_undoes_a_selection(n: int, bad: float, place: int) -> None:
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    x[place] = bad
    for k in (0, 1, n // 2, n):
        assert same_selection(x, k)
        assert same_selection(x, k, (None, 3.0))


def test_what_overflows_in_units_of_the_loss_is_kept() -> None:
    x = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    for seed, scale in ((1, 65536.0), (2, 3.0)):
        residual = np.full(x.size, 1e30, np.float32)
        residual[7] = np.float32(3e38) / np.float32(scale)
        p = (x * np.float32(2.0**100)).astype(np.float32)
        results = []
        for module in (topk, reference):
            left, out = residual.copy(), (poisoned(90, np.uint32), poisoned(90, np.float32))
            with np.errstate(all="ignore"):
                module.select_top_k(p, 90, *out, residual=left, scale=scale)
            results.append((*out, left))
        assert all(same_bits(a, b) for a, b in zip(*results, strict=True)), seed


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    whole = as_kind(np.random.default_rng(shift).standard_normal(5003).astype(np.float32), kind)
    x, inner, k = whole[shift:-shift], slice(shift, -shift), 700
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    given = poisoned(k + 2 * shift, np.uint32), poisoned(k + 2 * shift, np.float32), kept
    due = [array.copy() for array in given]
    topk.select_top_k(x, k, given[0][inner], given[1][inner], residual=kept[inner], scale=3.0)
    reference.select_top_k(x, k, due[0][inner], due[1][inner], residual=due[2][inner], scale=3.0)
    for array, expected in zip(given, due, strict=True):
        assert same_bits(array, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    with running_on(Emulated(1000 * seed)):
        for kind in ("normal", "few values", "heavy tails"):
            assert same_selection(awkward(kind, LEAST_SAMPLED + 999), 700)
        random = np.random.default_rng(seed)
        assert same_sum(random.integers(0, 300, 3000, dtype=np.uint32), 301, seed)


def same_sum(indices: Any, n: int, seed: int, weight: float = -3.3) -> bool:
    random = np.random.default_rng(seed)
    values = random.standard_normal(indices.size).astype(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    topk.scatter_add(indices, values, ours, weight=weight)
    reference.scatter_add(indices, values, specified, weight=weight)
    return same_bits(ours, specified)


@given(st.sampled_from(SIZES), st.integers(0, 99), st.sampled_from((1.0, 0.25, -3.3)))
def test_scatter_add_equals_reference_with_repeated_indices(
    k: int, seed: int, weight: float
) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 2 * k + 20))
    assert same_sum(random.integers(0, n, k, dtype=np.uint32), n, seed, weight)


@pytest.mark.parametrize("k", [16_384, 16_385])
def test_scatter_add_sees_one_index_that_is_out_of_order_wherever_it_is(k: int) -> None:
    n = 3 * k
    increasing = np.sort(np.random.default_rng(k).permutation(n)[:k]).astype(np.uint32)
    assert same_sum(increasing, n, 1)
    for place in (1, k // 2, k - 1):
        repeated = increasing.copy()
        repeated[place] = repeated[place - 1]
        assert same_sum(repeated, n, 2)


@given(st.sampled_from(SIZES), st.integers(0, 99), st.sampled_from(SCALES))
def test_return_unsent_equals_reference(k: int, seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    exact = (random.standard_normal(k) * 50_000).astype(np.float32)
    exact[::3] = 0.5  # of which nothing is lost, so that the residual's -0 stays
    exact[random.integers(0, max(k, 1), min(k, 3))] = random.choice([np.nan, np.inf, 1e-45])
    with np.errstate(all="ignore"):
        sent = exact.astype(np.float16).astype(np.float32)
    indices = random.permutation(3 * k)[:k].astype(np.uint32)
    ours = random.choice([-0.0, 0.7], 3 * k).astype(np.float32)
    specified = ours.copy()
    topk.return_unsent(ours, indices, exact, sent, scale=scale)
    with np.errstate(all="ignore"):
        reference.return_unsent(specified, indices, exact, sent, scale=scale)
    assert same_bits(ours, specified)
