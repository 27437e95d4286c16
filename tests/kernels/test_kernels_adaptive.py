"""Selections whose size depends on the data: SIDCo, DGC, AdaComp, relative thresholds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import (
    most_selected,
    scatter_add,
    select_above,
    select_adacomp,
    select_dgc,
    select_sidco,
)
from compressa.kernels._selection import sample_indices, unscaled
from compressa.kernels.cuda import _select, adacomp, sidco
from compressa.kernels.cuda._device import HOME, device
from compressa.kernels.dgc import ADJUSTMENTS
from compressa.kernels.sidco import TOLERANCE, sampled
from emulated_cuda import on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    FINITE,
    KINDS,
    SCALES,
    as_kind,
    gradients,
    kinds,
    poisoned,
    residual_for,
    same_bits,
)

Keep = tuple[int | None, float]
Select = Callable[..., int]
FUNCTIONS: dict[str, Select] = {
    "above": select_above,
    "adacomp": select_adacomp,
    "dgc": select_dgc,
    "sidco": select_sidco,
}
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
LARGER = (2047, 2049, 4096, 4099, 16385, 40_001)
BINS = (1, 2, 7, 50, 64, 129, 500, 2047, 2048, 2049, 5000, 40_000, 2**40)
N, K = 30_011, 300


def run(
    function: Select,
    x: Array,
    arguments: tuple[Any, ...],
    room: int,
    residual: F32 | None,
    **more: Any,
) -> tuple[Array, F32]:
    indices, values = poisoned(room, np.uint32), poisoned(room, np.float32)
    count = function(x, *arguments, indices, values, residual=residual, **more)
    assert 0 <= count <= room
    return indices[:count], values[:count]


def check(
    name: str,
    x: Array,
    arguments: tuple[Any, ...],
    room: int,
    keep: Keep = (3, 1.0),
    *,
    relative_to: str = "",
    **how: Any,
) -> int:
    """Assert that all backends select alike; return how many."""
    residual = residual_for(x.astype(np.float32), keep[0])
    more: dict[str, Any] = {"loss_scale": keep[1]}
    if relative_to:
        more["relative_to"] = relative_to

    def selected(kernels: Any) -> list[Array | None]:
        left, function = copied(residual), getattr(kernels, f"select_{name}")
        return [*run(function, x, arguments, room, left, **more), left]

    algorithm = "select" if name == "above" else name
    found = alike(algorithm, selected, reads=[x], **how)[0]
    return int(found.size)


def dgc_room(x: Array, k: int) -> int:
    return min(x.size, most_selected(k))


@on_every_backend
@settings(max_examples=120)
@given(gradients(), kinds, feedback, st.integers(1, 4), st.data())
def test_sidco_equals_reference(
    x: F32, kind: str, keep: Keep, stages: int, data: st.DataObject
) -> None:
    if x.size:
        k, room = data.draw(st.integers(1, x.size)), data.draw(st.integers(0, x.size))
        check("sidco", as_kind(x, kind), (k, stages), room, keep, on_cpu=kind == "float32")


@on_every_backend
@settings(max_examples=120)
@given(gradients(), kinds, feedback, st.data())
def test_dgc_equals_reference(x: F32, kind: str, keep: Keep, data: st.DataObject) -> None:
    if x.size:
        k, sample = (data.draw(st.integers(1, x.size)) for _ in range(2))
        on_cpu = kind == "float32"
        check("dgc", as_kind(x, kind), (k, sample), dgc_room(x, k), keep, on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=120)
@given(gradients(), kinds, feedback, st.sampled_from((1, 2, 7, 50, 500)), st.data())
def test_adacomp_equals_reference(
    x: F32, kind: str, keep: Keep, bin_elems: int, data: st.DataObject
) -> None:
    room, on_cpu = data.draw(st.integers(0, x.size)), kind == "float32"
    check("adacomp", as_kind(x, kind), (bin_elems,), room, keep, on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=20)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    st.integers(1, 4),
    feedback,
    st.sampled_from((0.001, 0.01, 0.3, 1.0)),
    st.sampled_from((0.0, 0.5, 1.2, 3.0)),
)
def test_sidco_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, stages: int, keep: Keep, density: float, share: float
) -> None:
    k = int(np.ceil(density * x.size))
    room, on_cpu = min(int(share * k), x.size), kind == "float32"
    check("sidco", as_kind(x, kind), (k, stages), room, keep, on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=20)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    feedback,
    st.sampled_from((0.0005, 0.01, 0.3, 1.0)),
    st.sampled_from((0.001, 0.1, 1.0)),
)
def test_dgc_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, keep: Keep, density: float, share: float
) -> None:
    k, sample = (int(np.ceil(part * x.size)) for part in (density, share))
    on_cpu = kind == "float32"
    check("dgc", as_kind(x, kind), (k, sample), dgc_room(x, k), keep, on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=30)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    st.sampled_from(BINS),
    feedback,
    st.sampled_from((0.0, 0.001, 0.05, 1.0)),
)
def test_adacomp_of_more_than_a_stretch_equals_reference(
    x: F32, kind: str, bin_elems: int, keep: Keep, share: float
) -> None:
    room, on_cpu = int(share * x.size), kind == "float32"
    check("adacomp", as_kind(x, kind), (bin_elems,), room, keep, on_cpu=on_cpu)


@on_every_backend
@given(gradients(), feedback, st.sampled_from((0.0, 0.5, 1.0, 3.0)), st.data())
@pytest.mark.parametrize("relative_to", ["rms", "max"])
def test_relative_thresholds_equal_reference(
    relative_to: str, x: F32, keep: Keep, threshold: float, data: st.DataObject
) -> None:
    room = data.draw(st.integers(0, x.size))
    check("above", x, (threshold,), room, keep, relative_to=relative_to)


def drawn(kind: str, n: int) -> F32:
    random = np.random.default_rng(11)
    made = {
        "laplace": random.laplace(size=n),
        "normal": random.standard_normal(n),
        "heavy": random.standard_t(2, n),
        "few values": np.round(random.standard_normal(n)),
        "zero": np.zeros(n),
        "hot": np.where(np.arange(n) < n // 50, random.standard_normal(n), 0),
        "far out": np.where(np.arange(n) == 77, 1e4, random.standard_normal(n)),
        "few": np.where(np.arange(n) < 250, random.standard_normal(n), 0),
        "not finite": np.where(np.arange(n) == n // 2, np.nan, random.standard_normal(n)),
    }
    return made[kind].astype(np.float32)


SHAPES = ["laplace", "normal", "heavy", "few values", "zero", "hot", "far out", "few", "not finite"]


@on_every_backend
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("k", [14, 1400])
def test_all_equal_reference_in_pieces(kind: str, k: int) -> None:
    x = drawn(kind, 140_000)
    for keep in ((None, 1.0), (5, 3.0)):
        for stages in (1, 3):
            check("sidco", x, (k, stages), k + k // 5, keep, large=True)
        check("dgc", x, (k, 1400), most_selected(k), keep, large=True)
        check("adacomp", x, (50,), 20 * k, keep, large=True)
        check("above", x, (2.5,), 10 * k, keep, relative_to="rms", large=True)
        check("above", x, (0.25,), 10 * k, keep, relative_to="max", large=True)


@on_every_backend
@pytest.mark.parametrize("kind", SHAPES)
def test_sidco_equals_reference_whatever_the_tail_is(kind: str) -> None:
    x = drawn(kind, N)
    for stages in (1, 3):
        for k, room in ((K, K + K // 5), (30, 36), (10 * K, 11 * K)):
            keep = (5 if stages == 3 else None, 3.0)
            check("sidco", x, (k, stages), room, keep)


@on_every_backend
@pytest.mark.parametrize("stages", [16, 17, 40])
def test_there_may_be_more_stages_than_are_counted_at_a_time(stages: int) -> None:
    check("sidco", drawn("normal", N), (30, stages), 40)


@on_every_backend
@pytest.mark.parametrize("factor", [1e4, 1e-4])
@pytest.mark.parametrize("room", [100, 360, N])
def test_a_sample_that_misleads_changes_nothing_but_the_time(factor: float, room: int) -> None:
    x = drawn("heavy", N)
    x[sample_indices(N, sampled(N))] *= np.float32(factor)
    for stages in (1, 2, 4):
        check("sidco", x, (K, stages), room)
        check("sidco", x, (K, stages), room, (None, 3.0))


@on_every_backend
@pytest.mark.parametrize("index", [None, 3, 135_000])
def test_more_than_all_threads_take_at_a_time_equals_reference(index: int | None) -> None:
    x = np.random.default_rng(6).standard_t(3, 140_011).astype(np.float32)
    if index is not None:
        x[index] = np.inf
    check("sidco", x, (1000, 3), 1200)
    check("sidco", x, (1000, 3), 140_000, (None, 3.0))
    check("dgc", x, (1000, 20_000), most_selected(1000))
    x[sample_indices(x.size, 20_000)] *= np.float32(1.5)
    check("dgc", x, (1000, 20_000), most_selected(1000))


@on_every_backend
@pytest.mark.parametrize("bin_elems", BINS)
def test_bins_of_any_size_equal_reference(bin_elems: int) -> None:
    x = np.random.default_rng(bin_elems).standard_normal(20_011).astype(np.float32)
    check("adacomp", x, (bin_elems,), x.size)
    check("adacomp", np.round(x), (bin_elems,), 400, (None, 3.0))


@on_every_backend
@pytest.mark.parametrize("factor", [0.9, 0.6, 0.2, 1e-3, 1e-30])
@pytest.mark.parametrize("seed", [None, 4])
def test_a_threshold_that_few_reach_is_lowered_step_by_step(
    factor: float, seed: int | None
) -> None:
    x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    x[np.setdiff1d(np.arange(N), sample_indices(N, 1500))] *= np.float32(factor)
    check("dgc", x, (K, 1500), most_selected(K), (seed, 1.0))


@on_every_backend
@pytest.mark.parametrize("step", [0.97, 0.99, 0.996])
def test_a_threshold_is_lowered_ten_times_at_most(step: float) -> None:
    x = np.zeros(N, np.float32)
    indices = sample_indices(N, 1500)
    x[indices] = np.random.default_rng(1).permutation(step ** np.arange(indices.size))
    check("dgc", x, (2000, 1500), most_selected(2000), (None, 1.0))
    check("dgc", x, (400, 1500), most_selected(400), (4, 1.0))


@on_every_backend
def test_a_threshold_that_far_too_many_reach_leaves_exactly_k() -> None:
    x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    x[sample_indices(N, 1500)] *= np.float32(0.1)
    assert check("dgc", x, (K, 1500), most_selected(K), (None, 1.0)) == K
    assert check("dgc", np.round(x), (K, 1500), most_selected(K), (None, 1.0)) == K


@on_every_backend
def test_one_step_down_may_be_one_too_many() -> None:
    x = np.full(N, 0.75, np.float32)
    x[sample_indices(N, 150)] = 1.0
    assert check("dgc", x, (K, 150), most_selected(K), (None, 1.0)) == K


@on_every_backend
@pytest.mark.parametrize("tiny", [0.0, 1e-45, 3e-45, 1e-44])
def test_the_smallest_threshold_is_the_smallest_number_above_zero(tiny: float) -> None:
    x = np.zeros(5000, np.float32)
    x[::100] = np.float32(tiny)
    x[7] = 1.0
    for k, sample in ((1, 40), (100, 5000), (200, 5000), (2000, 700)):
        check("dgc", x, (k, sample), dgc_room(x, k), (None, 1.0))


@on_every_backend
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("index", [0, 1234, -1])
def test_one_value_that_is_not_finite_undoes_a_selection(bad: float, index: int) -> None:
    x = np.random.default_rng(2).standard_normal(9003).astype(np.float32)
    x[index] = bad
    for keep in ((3, 1.0), (None, 3.0)):
        for k, sample in ((1, 10), (50, x.size), (x.size, x.size)):
            check("dgc", x, (k, sample), dgc_room(x, k), keep)
        for room in (0, 1, 100):
            check("adacomp", x, (50,), room, keep)
            check("adacomp", x, (3000,), room, keep)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("adacomp", (50,)), ("adacomp", (3000,)), ("dgc", (200, 900)), ("sidco", (200, 3))],
)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    name: str, arguments: tuple[int, ...], kind: str, shift: int
) -> None:
    inner, room = slice(shift, -shift), most_selected(200)
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)

    def selected(kernels: Any) -> list[Array]:
        (all_indices, indices), left = odd(poisoned(room, np.uint32), shift), kept.copy()
        all_values, values = odd(poisoned(room, np.float32), shift)
        options: dict[str, Any] = {"residual": left[inner], "loss_scale": 3.0}
        function = getattr(kernels, f"select_{name}")
        function(whole[inner], *arguments, indices, values, **options)
        return [all_indices, all_values, left]

    alike(name, selected, on_cpu=kind == "float32")


@on_every_backend
def test_the_order_of_threads_does_not_matter() -> None:
    x = drawn("normal", N)
    for kind in ("normal", "heavy"):
        check("sidco", drawn(kind, N), (K, 3), 360, orders=range(4))
    room = most_selected(K)
    check("dgc", x, (K, 9000), room, orders=range(4))
    check("dgc", np.round(x), (K, 600), room, (None, 1.0), orders=range(4))
    y = x.copy()
    y[sample_indices(N, 600)] *= np.float32(1.3)
    check("dgc", y, (K, 600), room, orders=range(4))
    for bin_elems in (1, 7, 500, 6000):
        check("adacomp", x[:20_011], (bin_elems,), 700, orders=range(4))
        check("adacomp", np.round(x[:20_011]), (bin_elems,), 700, (None, 1.0), orders=range(4))


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "above": (2.5,),
    "adacomp": (50,),
    "dgc": (700, 7000),
    "sidco": (700, 3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_do_not_depend_on_threads(name: str) -> None:
    x = drawn("heavy", 700_001)

    def selected() -> list[Array | None]:
        left = residual_for(x, 5)
        return [*run(FUNCTIONS[name], x, ARGUMENTS[name], 910, left), left]

    alike_in_threads(selected)


@given(
    gradients(specials=FINITE[:6], magnitudes=(0.0, 1e-40, 1.0, 1e30)),
    st.sampled_from([*FUNCTIONS]),
)
def test_every_element_is_either_sent_or_kept(x: F32, name: str) -> None:
    if not x.size:
        return
    k, residual = max(1, x.size // 10), residual_for(x, 7)
    assert residual is not None
    p = x + residual
    arguments: dict[str, tuple[Any, ...]] = {
        "above": (1.0,),
        "adacomp": (16,),
        "dgc": (k, k),
        "sidco": (k, 2),
    }
    room = min(x.size, most_selected(k))
    indices, values = run(FUNCTIONS[name], x, arguments[name], room, residual)
    assert not residual[indices].any()
    scatter_add(indices, values, residual)
    assert np.array_equal(residual, p)


@pytest.mark.parametrize("k", [1000, 10_000])
def test_sidco_hits_laplace_data_in_one_stage(k: int) -> None:
    indices, _ = run(select_sidco, drawn("laplace", 1_000_000), (k, 1), 2 * k, None)
    assert abs(indices.size - k) < 0.1 * k


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_sidco_hits_other_tails_in_a_few_stages(kind: str) -> None:
    x, k = drawn(kind, 1_000_000), 10_000
    one, several = (run(select_sidco, x, (k, s), 20 * k, None)[0].size for s in (1, 4))
    assert one == k or one > 1.2 * k  # too few reached the threshold, or too many
    assert abs(several - k) <= 0.2 * k


@pytest.mark.parametrize("kind", ["laplace", "normal", "heavy"])
def test_dgc_selects_nearly_k_whatever_its_sample(kind: str) -> None:
    x, k = drawn(kind, 1_000_000), 2000
    for sample in (2000, 10_000, 1_000_000):
        indices, _ = run(select_dgc, x, (k, sample), most_selected(k), None)
        assert 0.8 * k <= indices.size <= 1.3 * k


def test_dgc_takes_exactly_k_where_far_more_reach_the_threshold() -> None:
    x = np.where(np.arange(100_000) % 2, 1.0, 2.0).astype(np.float32)
    indices, _ = run(select_dgc, x, (1000, 5000), most_selected(1000), None)
    assert indices.tolist() == list(range(0, 2000, 2))


@pytest.mark.parametrize("bin_elems", [50, 500])
def test_adacomp_sends_what_a_repeated_gradient_would_make_the_largest(bin_elems: int) -> None:
    random = np.random.default_rng(3)
    g, e = (random.standard_normal(10_000).astype(np.float32) for _ in range(2))
    kept = e.copy()
    indices, _ = run(select_adacomp, g, (bin_elems,), g.size, kept)
    p = (e + g).reshape(-1, bin_elems)
    due = np.abs((e + g) + g).reshape(p.shape) >= np.abs(p).max(axis=1, keepdims=True)
    assert indices.tolist() == np.flatnonzero(due).tolist()


def test_useless_numbers_are_refused() -> None:
    x = np.ones(10, np.float32)
    for name, arguments, message in (
        ("sidco", (0, 1), "k = 0"),
        ("sidco", (5, 0), "stages = 0"),
        ("dgc", (11, 5), "k = 11"),
        ("dgc", (2, 0), "sample = 0"),
        ("adacomp", (0,), "bin_elems must"),
        ("above", (-1.0,), "threshold must"),
    ):
        with pytest.raises(ValueError, match=message):
            run(FUNCTIONS[name], x, arguments, 2, None)
    with pytest.raises(ValueError, match="relative_to must be one of one, rms, max"):
        run(partial(select_above, relative_to="mean"), x, (1.0,), 2, None)  # type: ignore[arg-type]


@on_emulated_cuda
@settings(max_examples=30)
@given(gradients(sizes=(1, 7, 300, 5000)), feedback, st.data())
def test_ranks_in_a_sample_are_exact(x: F32, keep: Keep, data: st.DataObject) -> None:
    sample = data.draw(st.integers(1, x.size))
    ranks = data.draw(st.lists(st.integers(1, sample), min_size=1, max_size=20))
    residual = residual_for(x, keep[0])
    with np.errstate(all="ignore"):
        q = np.abs(unscaled(x, residual, keep[1]))[sample_indices(x.size, sample)]
    if np.isnan(q).any():
        return
    selection = _select.Selection(x, residual, keep[1])
    ranked = _select.draw_ranks("sidco", selection, sample, ranks)
    fits = device().empty(len(ranks) * sidco._STAGE_WORDS, np.uint64)
    ranked.finish("begin_sidco", residual, selection.state, fits)
    bases = np.frombuffer(fits.owner, np.float32).reshape(len(ranks), -1)[:, -2]
    due = np.maximum(np.sort(q)[::-1][np.array(ranks) - 1], np.float32(1e-45))
    assert same_bits(bases[1:].copy(), due[1:])


def test_the_launchers_and_the_kernels_have_the_same_sizes() -> None:
    text = "".join(
        (HOME / f).read_text() for f in ("adacomp.cu", "dgc.cu", "sidco.cu", "_ranks.cuh")
    )
    assert f"constexpr int STRETCH = {adacomp._STRETCH};" in text
    assert f"constexpr int ADJUSTMENTS = {ADJUSTMENTS};" in text
    assert f"constexpr int STAGE_WORDS = {sidco._STAGE_WORDS};" in text
    assert f"constexpr int RANKS = {_select.RANKS};" in text
    assert f"constexpr double TOLERANCE = {TOLERANCE};" in text
