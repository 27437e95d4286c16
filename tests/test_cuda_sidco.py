"""The CUDA kernels of SIDCo, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import _ranks, sidco
from compressa.kernels.cuda._device import HOME, device, running_on
from compressa.kernels.cuda._select import Selection
from compressa.kernels.reference import sidco as reference
from compressa.kernels.reference._selection import sample_places, unscaled
from compressa.kernels.sidco import TOLERANCE, sampled
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
LARGER = (2047, 2049, 4096, 16385, 40_001)


def same(x: Any, k: int, stages: int, room: int, keep: Keep = (3, 1.0)) -> bool:
    results = []
    for module in (sidco, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        out = poisoned(room, np.uint32), poisoned(room, np.float32)
        with np.errstate(all="ignore"):
            count = module.select_sidco(x, k, stages, *out, residual=residual, scale=keep[1])
        results.append((np.array(count), *out, residual))
    return all(a is None or same_bits(a, b) for a, b in zip(*results, strict=True))


@given(gradients(), st.sampled_from(KINDS), st.integers(1, 4), feedback, st.data())
def test_select_sidco_equals_reference(
    x: F32, kind: str, stages: int, keep: Keep, data: st.DataObject
) -> None:
    if x.size:
        k, room = data.draw(st.integers(1, x.size)), data.draw(st.integers(0, x.size))
        assert same(as_kind(x, kind), k, stages, room, keep)


@settings(max_examples=20)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    st.integers(1, 4),
    feedback,
    st.sampled_from((0.001, 0.01, 0.3, 1.0)),
    st.sampled_from((0.0, 0.5, 1.2, 3.0)),
)
def test_select_sidco_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, stages: int, keep: Keep, density: float, share: float
) -> None:
    k = int(np.ceil(density * x.size))
    assert same(as_kind(x, kind), k, stages, min(int(share * k), x.size), keep)


N, K = 30_011, 300


def shaped(kind: str) -> F32:
    random = np.random.default_rng(11)
    made = {
        "laplace": random.laplace(size=N),
        "normal": random.standard_normal(N),
        "heavy": random.standard_t(2, N),
        "few values": np.round(random.standard_normal(N)),
        "zero": np.zeros(N),
        "hot": np.where(np.arange(N) < N // 50, random.standard_normal(N), 0),
        "far out": np.where(np.arange(N) == 77, 1e4, random.standard_normal(N)),
        "few": np.where(np.arange(N) < 250, random.standard_normal(N), 0),
        "not finite": np.where(np.arange(N) == N // 2, np.nan, random.standard_normal(N)),
    }
    return made[kind].astype(np.float32)


@pytest.mark.parametrize(
    "kind",
    ["laplace", "normal", "heavy", "few values", "zero", "hot", "far out", "few", "not finite"],
)
def test_select_sidco_equals_reference_whatever_the_tail_is(kind: str) -> None:
    x = shaped(kind)
    for stages in (1, 3):
        for k, room in ((K, K + K // 5), (30, 36), (10 * K, 11 * K)):
            assert same(x, k, stages, room, (5 if stages == 3 else None, 3.0))


@pytest.mark.parametrize("stages", [16, 17, 40])
def test_there_may_be_more_stages_than_are_counted_at_a_time(stages: int) -> None:
    assert same(shaped("normal"), 30, stages, 40)


@pytest.mark.parametrize("factor", [1e4, 1e-4])
@pytest.mark.parametrize("room", [100, 360, N])
def test_a_sample_that_misleads_changes_nothing_but_the_time(factor: float, room: int) -> None:
    x = shaped("heavy")
    x[sample_places(N, sampled(N))] *= np.float32(factor)
    for stages in (1, 2, 4):
        assert same(x, K, stages, room)
        assert same(x, K, stages, room, (None, 3.0))


@pytest.mark.parametrize("place", [None, 3, 135_000])
def test_more_than_all_threads_take_at_a_time_equals_reference(place: int | None) -> None:
    x = np.random.default_rng(6).standard_t(3, 140_011).astype(np.float32)
    if place is not None:
        x[place] = np.inf
    assert same(x, 1000, 3, 1200)
    assert same(x, 1000, 3, 140_000, (None, 3.0))


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    inner, k = slice(shift, -shift), 200
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    given = poisoned(300, np.uint32), poisoned(300, np.float32), kept
    due = [array.copy() for array in given]
    for module, (indices, values, left) in ((sidco, given), (reference, due)):
        module.select_sidco(
            whole[inner], k, 3, indices[inner], values[inner], residual=left[inner], scale=3.0
        )
    for array, expected in zip(given, due, strict=True):
        assert same_bits(array, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    with running_on(Emulated(1000 * seed)):
        for kind in ("normal", "heavy"):
            assert same(shaped(kind), K, 3, 360)


@settings(max_examples=30)
@given(gradients(sizes=(1, 7, 300, 5000)), feedback, st.data())
def test_ranks_in_a_sample_are_exact(x: F32, keep: Keep, data: st.DataObject) -> None:
    sample = data.draw(st.integers(1, x.size))
    ranks = data.draw(st.lists(st.integers(1, sample), min_size=1, max_size=20))
    residual = residual_for(x, keep[0])
    with np.errstate(all="ignore"):
        q = np.abs(unscaled(x, residual, keep[1]))[sample_places(x.size, sample)]
    if np.isnan(q).any():
        return
    selection = Selection(x, residual, keep[1])
    ranked = _ranks.draw_ranks("sidco", selection, sample, ranks)
    fits = device().empty(len(ranks) * sidco._STAGE_WORDS, np.uint64)
    ranked.finish("begin_sidco", residual, selection.state, fits)
    bases = np.frombuffer(fits.owner, np.float32).reshape(len(ranks), -1)[:, -2]
    due = np.maximum(np.sort(q)[::-1][np.array(ranks) - 1], np.float32(1e-45))
    assert same_bits(bases[1:].copy(), due[1:])


def test_the_launcher_and_the_kernels_have_the_same_sizes() -> None:
    text = "".join((HOME / name).read_text() for name in ("sidco.cu", "_ranks.cuh"))
    assert f"constexpr int STAGE_WORDS = {sidco._STAGE_WORDS};" in text
    assert f"constexpr int RANKS = {_ranks.RANKS};" in text
    assert f"constexpr double TOLERANCE = {TOLERANCE};" in text
