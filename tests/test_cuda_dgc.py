"""The CUDA kernels of DGC's selection, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import dgc
from compressa.kernels.cuda._device import HOME, running_on
from compressa.kernels.dgc import ADJUSTMENTS, most_selected
from compressa.kernels.reference import dgc as reference
from compressa.kernels.reference._selection import sample_places
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
LARGER = (2047, 2049, 16385, 40_001)


def counts_of(x: Any, k: int, sample: int, keep: Keep = (3, 1.0)) -> list[int]:
    """How many are sent, by the kernels and as specified; all else is the same."""
    results = []
    for module in (dgc, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        room = min(x.size, most_selected(k))
        out = poisoned(room, np.uint32), poisoned(room, np.float32)
        with np.errstate(all="ignore"):
            count = module.select_dgc(x, k, sample, *out, residual=residual, scale=keep[1])
        results.append((count, *out, residual))
    for ours, specified in zip(*(result[1:] for result in results), strict=True):
        assert ours is None or same_bits(ours, specified)
    return [result[0] for result in results]


def same(x: Any, k: int, sample: int, keep: Keep = (3, 1.0)) -> bool:
    ours, specified = counts_of(x, k, sample, keep)
    return ours == specified


@given(gradients(), st.sampled_from(KINDS), feedback, st.data())
def test_select_dgc_equals_reference(x: F32, kind: str, keep: Keep, data: st.DataObject) -> None:
    if x.size:
        k, sample = (data.draw(st.integers(1, x.size)) for _ in range(2))
        assert same(as_kind(x, kind), k, sample, keep)


@settings(max_examples=20)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    feedback,
    st.sampled_from((0.0005, 0.01, 0.3, 1.0)),
    st.sampled_from((0.001, 0.1, 1.0)),
)
def test_select_dgc_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, keep: Keep, density: float, share: float
) -> None:
    k, sample = (int(np.ceil(part * x.size)) for part in (density, share))
    assert same(as_kind(x, kind), k, sample, keep)


N, K = 30_011, 300


@pytest.mark.parametrize("factor", [0.9, 0.6, 0.2, 1e-3, 1e-30])
@pytest.mark.parametrize("seed", [None, 4])
def test_a_threshold_that_few_reach_is_lowered_step_by_step(
    factor: float, seed: int | None
) -> None:
    x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    x[np.setdiff1d(np.arange(N), sample_places(N, 1500))] *= np.float32(factor)
    assert same(x, K, 1500, (seed, 1.0))


@pytest.mark.parametrize("step", [0.97, 0.99, 0.996])
def test_a_threshold_is_lowered_ten_times_at_most(step: float) -> None:
    x = np.zeros(N, np.float32)
    places = sample_places(N, 1500)
    x[places] = np.random.default_rng(1).permutation(step ** np.arange(places.size))
    assert same(x, 2000, 1500, (None, 1.0))
    assert same(x, 400, 1500, (4, 1.0))


def test_a_threshold_that_far_too_many_reach_leaves_exactly_k() -> None:
    x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    x[sample_places(N, 1500)] *= np.float32(0.1)
    assert counts_of(x, K, 1500, (None, 1.0)) == [K, K]
    assert counts_of(np.round(x), K, 1500, (None, 1.0)) == [K, K]


def test_one_step_down_may_be_one_too_many() -> None:
    x = np.full(N, 0.75, np.float32)
    x[sample_places(N, 150)] = 1.0
    assert counts_of(x, K, 150, (None, 1.0)) == [K, K]


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 3e-45, 1e-44])
def test_the_smallest_threshold_is_the_smallest_number_above_zero(tiny: float) -> None:
    x = np.zeros(5000, np.float32)
    x[::100] = np.float32(tiny)
    x[7] = 1.0
    for k, sample in ((1, 40), (100, 5000), (200, 5000), (2000, 700)):
        assert same(x, k, sample, (None, 1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1234, -1])
def test_one_value_that_is_not_finite_undoes_a_selection(bad: float, place: int) -> None:
    x = np.random.default_rng(2).standard_normal(5003).astype(np.float32)
    x[place] = bad
    for k, sample in ((1, 10), (50, 5003), (5003, 5003)):
        assert same(x, k, sample)
        assert same(x, k, sample, (None, 3.0))


@pytest.mark.parametrize("place", [None, 3, 135_000])
def test_more_than_all_threads_take_at_a_time_equals_reference(place: int | None) -> None:
    x = np.random.default_rng(6).standard_normal(140_011).astype(np.float32)
    if place is not None:
        x[place] = np.inf
    assert same(x, 1000, 20_000)
    x[sample_places(x.size, 20_000)] *= np.float32(1.5)
    assert same(x, 1000, 20_000)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    inner, k = slice(shift, -shift), 200
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    room = most_selected(k) + 2 * shift
    given = poisoned(room, np.uint32), poisoned(room, np.float32), kept
    due = [array.copy() for array in given]
    for module, (indices, values, left) in ((dgc, given), (reference, due)):
        module.select_dgc(
            whole[inner], k, 900, indices[inner], values[inner], residual=left[inner], scale=3.0
        )
    for array, expected in zip(given, due, strict=True):
        assert same_bits(array, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
    with running_on(Emulated(1000 * seed)):
        assert same(x, K, 9000)
        assert same(np.round(x), K, 600, (None, 1.0))
        x[sample_places(N, 600)] *= np.float32(1.3)
        assert same(x, K, 600)


def test_the_kernels_lower_as_often_as_is_specified() -> None:
    text = (HOME / "dgc.cu").read_text()
    assert f"constexpr int ADJUSTMENTS = {ADJUSTMENTS};" in text
