"""Selection by threshold and by index: the reference's bits, nothing lost, nothing trusted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from alike import Array, alike, copied, odd, on_every_backend
from compressa.kernels import scatter_add, select_above, select_at
from compressa.kernels.cuda import _select
from compressa.kernels.cuda._device import HOME, source_text
from compressa.kernels.select import Reference
from compressa.kernels.threads import KernelThreads
from emulated_cuda import on_emulated_cuda, run_text
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
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
thresholds = st.sampled_from((0.0, -0.0, 1e-50, 1e-45, 0.5, 1.0, 2.0, 3.0, 1e30, 1e300, np.inf))
references = st.sampled_from(("one", "rms", "max"))
LARGER = (2047, 2048, 2049, 4099, 16385, 70_001)


def above(
    function: Callable[..., int],
    x: F32,
    threshold: float,
    room: int,
    residual: F32 | None,
    loss_scale: float,
    relative_to: str = "one",
) -> tuple[np.ndarray, F32]:
    indices, values = poisoned(room, np.uint32), poisoned(room, np.float32)
    options = {"relative_to": relative_to, "residual": residual, "loss_scale": loss_scale}
    count = function(x, threshold, indices, values, **options)
    assert 0 <= count <= room
    assert same_bits(indices[count:], poisoned(room - count, np.uint32))
    assert same_bits(values[count:], poisoned(room - count, np.float32))
    return indices[:count], values[:count]


def check_above(
    x: Array, threshold: float, room: int, keep: Keep, relative_to: str = "one", **how: Any
) -> None:
    residual = residual_for(x.astype(np.float32), keep[0])

    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        found = above(kernels.select_above, x, threshold, room, left, keep[1], relative_to)
        return [*found, left]

    alike("select", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=166)
@given(gradients(), kinds, thresholds, references, feedback, st.data())
def test_select_above_equals_reference(
    x: F32, kind: str, threshold: float, relative_to: Reference, keep: Keep, data: st.DataObject
) -> None:
    room, on_cpu = data.draw(st.integers(0, x.size)), kind == "float32"
    check_above(as_kind(x, kind), threshold, room, keep, relative_to, on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=30)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    thresholds,
    references,
    feedback,
    st.sampled_from((0.0, 0.001, 0.01, 0.3, 1.0)),
)
def test_select_above_of_more_than_a_tile_equals_reference(
    x: F32, kind: str, threshold: float, relative_to: Reference, keep: Keep, fraction: float
) -> None:
    room, on_cpu = int(fraction * x.size), kind == "float32"
    check_above(as_kind(x, kind), threshold, room, keep, relative_to, on_cpu=on_cpu)


@on_every_backend
@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.5, 3.3, 100.0])
@pytest.mark.parametrize("room", [0, 1, 700, 20_000, 150_000])
def test_select_above_equals_reference_in_pieces(threshold: float, room: int) -> None:
    x = np.random.default_rng(1).standard_normal(150_000).astype(np.float32)
    check_above(x, threshold, room, (None, 1.0), large=True)
    check_above(x, threshold, room, (3, 1.0), large=True)
    check_above(np.round(x), threshold, room, (None, 1.0), large=True)


@on_every_backend
@pytest.mark.parametrize("relative_to", ["one", "rms", "max"])
@pytest.mark.parametrize("tails", [0.5, 3.0])
def test_select_above_equals_reference_where_there_is_a_sample(
    relative_to: Reference, tails: float, sampled_early: int
) -> None:
    n = sampled_early + 5001
    x = np.random.default_rng(4).standard_t(tails, n)
    x = np.clip(x, -1e38, 1e38).astype(np.float32)
    for threshold in (0.0, 0.01, 0.7, 2.5, 100.0):
        for room in (0, 1, 700, n // 3, n):
            check_above(x, threshold, room, (None if room % 2 else 5, 1.0), relative_to)


@on_every_backend
@pytest.mark.parametrize("n", [100, 70_000])
@pytest.mark.parametrize("room", [0, 1, 100])
@pytest.mark.parametrize(
    ("relative_to", "threshold"), [("one", -0.0), ("one", 1e300), ("max", np.inf), ("rms", np.inf)]
)
def test_a_threshold_may_be_minus_zero_or_too_large_or_infinite(
    relative_to: str, threshold: float, room: int, n: int
) -> None:
    for x in (np.zeros(n, np.float32), np.arange(n, dtype=np.float32)):
        check_above(x, threshold, room, (None, 1.0), relative_to)


@on_every_backend
@pytest.mark.parametrize("relative_to", ["one", "rms", "max"])
@pytest.mark.parametrize("bad", [False, True])
def test_select_above_does_not_depend_on_threads(relative_to: str, bad: bool) -> None:
    x = np.random.default_rng(4).standard_t(3, 1_000_003).astype(np.float32)
    x[999_999] = np.inf if bad else 1.0
    with ThreadPoolExecutor(3) as pool, KernelThreads(pool, 3).enlisted():
        check_above(x, 0.7, 20_000, (5, 3.0), relative_to, large=True)


@on_every_backend
def test_the_order_of_threads_does_not_matter(sampled_early: int) -> None:
    n = sampled_early + 5001
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    check_above(x, 1.0, 3000, (1, 1.0), "rms", orders=range(4))
    check_above(np.round(x), 1.0, 3000, (1, 1.0), orders=range(4))
    check_at(x, np.arange(3, n, 7, dtype=np.uint32), (1, 3.0), orders=range(4))


@pytest.mark.parametrize("room", [1, 10, 700])
def test_ties_at_the_end_of_the_room_go_to_the_lowest_index(room: int) -> None:
    for n in (1000, 150_000):
        x = np.ones(n, np.float32)
        x[n - 1] = -2.0
        indices, values = above(select_above, x, 1.0, room, None, 1.0)
        assert indices.tolist() == [*range(room - 1), n - 1]
        assert values.tolist() == [1.0] * (room - 1) + [-2.0]


@pytest.mark.parametrize("n", [1000, 150_000])
@pytest.mark.parametrize("index", [0, 7, 999])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_all_that_is_found(bad: float, index: int, n: int) -> None:
    x = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    x[index] = bad
    for relative_to in ("one", "rms", "max"):
        residual = residual_for(x, 6)
        assert residual is not None
        before, q = residual.copy(), x + residual
        indices, values = above(select_above, x, 1.0, 50, residual, 1.0, relative_to)
        assert indices.tolist() == [0]
        assert np.isnan(values).all()
        q[[0, index]] = before[[0, index]]
        assert same_bits(residual, q)


def test_a_sum_that_overflows_is_found_as_what_is_not_finite() -> None:
    x, residual = np.full(100, 3e38, np.float32), np.full(100, 3e38, np.float32)
    indices, values = above(select_above, x, 1.0, 100, residual, 1.0)
    assert (indices.tolist(), np.isnan(values).tolist()) == ([0], [True])
    assert (residual == np.float32(3e38)).all()


@given(gradients(specials=(), magnitudes=(1e-6, 1.0, 1e6)), st.sampled_from((0.3, 1.0, 2.5)))
def test_references_are_the_statistics_that_they_are_named_after(x: F32, threshold: float) -> None:
    size = np.abs(x.astype(np.float64))
    for relative_to, of in (
        ("rms", np.sqrt((size**2).mean()) if x.size else 0),
        ("max", size.max(initial=0)),
    ):
        indices, _ = above(select_above, x, threshold, x.size, None, 1.0, relative_to)
        least = min(threshold * of, size.max(initial=0))
        found = np.isin(np.arange(x.size), indices)
        assert not (found & (size < least * (1 - 1e-6))).any()
        assert not (~found & (size > least * (1 + 1e-6))).any()


@pytest.mark.parametrize("relative_to", ["rms", "max"])
def test_a_relative_threshold_finds_the_largest_and_never_a_zero(relative_to: str) -> None:
    x = np.zeros(3000, np.float32)
    for threshold in (0.0, 1e30):
        assert above(select_above, x, threshold, 3000, None, 1.0, relative_to)[0].size == 0
    x[[5, 2999]] = 1e-45, -1e-45
    for threshold in (0.0, 1e30):
        found = above(select_above, x, threshold, 3000, None, 1.0, relative_to)[0].tolist()
        assert found == [5, 2999]


@given(gradients(specials=FINITE), st.sampled_from((0.0, 0.5, 2.0)))
def test_select_above_finds_all_that_reach_the_threshold(x: F32, threshold: float) -> None:
    indices, values = above(select_above, x, threshold, x.size, None, 1.0)
    assert indices.tolist() == np.flatnonzero(np.abs(x) >= np.float32(threshold)).tolist()
    assert same_bits(values, x[indices])


@pytest.mark.parametrize("threshold", [-1.0, -np.inf, np.nan])
def test_refuses_useless_thresholds(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must"):
        above(select_above, np.zeros(3, np.float32), threshold, 3, None, 1.0)


def test_refuses_more_room_than_elements() -> None:
    with pytest.raises(ValueError, match="no more room than n = 3"):
        above(select_above, np.zeros(3, np.float32), 1.0, 4, None, 1.0)


ORDERED = """
KERNEL(ordered, CTA, (const double* terms, i64 count, double* out)) {
    double sum = sum_in_order(terms, count);
    if (threadIdx.x == 7) *out = sum;
}
"""


def in_order(terms: np.ndarray) -> float:
    total = 0.0
    for term in terms.tolist():
        total += term
    return total


@on_emulated_cuda
@pytest.mark.parametrize("seed", range(12))
def test_a_sum_by_many_threads_has_the_bits_of_one_in_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    for n in (0, 1, 1023, 1025, 20_000):
        terms = random.random(n) * 2.0 ** random.integers(-40, 3 * (seed % 4) + 1, n)
        if seed % 3 == 1:
            terms[1:] = random.integers(0, 4, max(n - 1, 0)) * 0.5  # many lie halfway
            terms[:1] = 2.0**53
        if seed % 3 == 2:
            terms[: n // 3] = 0
        out = np.zeros(1)
        arguments = (terms, np.int64(n), out)
        run_text(source_text("select") + ORDERED, "ordered", 1, arguments, seed)
        assert out[0] == in_order(terms)


def some_of(n: int, data: st.DataObject) -> np.ndarray:
    chosen = data.draw(st.sets(st.integers(0, n - 1), max_size=20)) if n else set()
    return np.array(sorted(chosen), np.uint32)


def check_at(x: Array, indices: Array, keep: Keep, **how: Any) -> None:
    residual = residual_for(x.astype(np.float32), keep[0])

    def run(kernels: Any) -> list[Array | None]:
        left, values = copied(residual), poisoned(indices.size, np.float32)
        kernels.select_at(x, indices, values, residual=left, loss_scale=keep[1])
        return [values, left]

    alike("select", run, reads=[x, indices], **how)


@on_every_backend
@given(gradients(), st.sampled_from(KINDS), feedback, st.data())
def test_select_at_equals_reference(x: F32, kind: str, keep: Keep, data: st.DataObject) -> None:
    check_at(as_kind(x, kind), some_of(x.size, data), keep)


@on_every_backend
@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("loss_scale", [1.0, 65536.0])
def test_select_at_of_more_than_all_threads_equals_reference(bad: bool, loss_scale: float) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal(50_003).astype(np.float32)
    x[49_999] = np.nan if bad else 3e38
    indices = np.flatnonzero(random.random(x.size) < 0.4).astype(np.uint32)
    for seed in (None, 5):
        check_at(x, indices, (seed, loss_scale))
        check_at(x, indices[:0], (seed, loss_scale))


@on_every_backend
@pytest.mark.parametrize("bad", [False, True])
def test_select_at_does_not_depend_on_threads(bad: bool) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal(1_000_003).astype(np.float32)
    x[999_999] = np.nan if bad else 1.0
    indices = np.flatnonzero(random.random(x.size) < 0.01).astype(np.uint32)
    with ThreadPoolExecutor(3) as pool, KernelThreads(pool, 3).enlisted():
        check_at(x, indices, (5, 1.0), large=True)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    inner, k = slice(shift, -shift), 300
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)

    def run(kernels: Any) -> list[Array]:
        (all_indices, indices), left = odd(poisoned(k, np.uint32), shift), kept.copy()
        all_values, values = odd(poisoned(k, np.float32), shift)
        options: dict[str, Any] = {"residual": left[inner], "loss_scale": 3.0}
        kernels.select_above(whole[inner], 0.5, indices, values, relative_to="rms", **options)
        kernels.select_at(whole[inner], indices, values, **options)
        return [all_indices, all_values, left]

    alike("select", run)


def test_the_launcher_and_the_kernels_have_the_same_sizes() -> None:
    text = (HOME / "_select.cuh").read_text() + (HOME / "select.cu").read_text()
    for name, number in (
        ("STATE_WORDS", _select.STATE_WORDS),
        ("SAMPLE", _select.SAMPLE),
        ("TILE", _select.TILE),
    ):
        assert f"constexpr int {name} = {number};" in text


@given(gradients(specials=FINITE[:6], magnitudes=(1.0, 1e-40, 1e30)), st.data())
def test_every_element_is_either_sent_or_kept(x: F32, data: st.DataObject) -> None:
    residual, indices = residual_for(x, 7), some_of(x.size, data)
    assert residual is not None
    p, values = x + residual, poisoned(indices.size, np.float32)
    select_at(x, indices, values, residual=residual)
    assert not residual[indices].any()
    scatter_add(indices, values, residual)
    assert np.array_equal(residual, p)


@pytest.mark.parametrize("n", [10, 150_000])
@pytest.mark.parametrize("index", [0, 4, 9])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_makes_the_first_sent_a_nan(
    bad: float, index: int, n: int
) -> None:
    x = np.random.default_rng(8).standard_normal(n).astype(np.float32)
    x[index] = bad
    indices, residual = np.array([4, 6, 8], np.uint32), residual_for(x, 9)
    assert residual is not None
    due, values = x + residual, poisoned(3, np.float32)
    due[[4, index]] = residual[[4, index]]
    select_at(x, indices, values, residual=residual)
    assert np.isnan(values[0])
    assert values[1:].tolist() == [0.0, 0.0]
    assert same_bits(residual, due)


def test_nothing_is_sent_of_nothing() -> None:
    none = np.empty(0, np.uint32), np.empty(0, np.float32)
    for relative_to in ("one", "rms", "max"):
        count = select_above(np.empty(0, np.float32), 1.0, *none, relative_to=relative_to)  # type: ignore[arg-type]
        assert count == 0
    residual = np.ones(3, np.float32)
    select_at(np.ones(3, np.float32), *none, residual=residual)
    assert residual.tolist() == [2.0, 2.0, 2.0]
    assert select_above(np.ones(3, np.float32), 1.0, *none, residual=residual) == 0
    assert residual.tolist() == [3.0, 3.0, 3.0]


def locked(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


N, K = 10, 2
UNFIT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "x of float64": ({"x": np.ones(N)}, TypeError, "x must be float32, float16, or bfloat16"),
    "x of two dimensions": ({"x": np.ones((2, 5), np.float32)}, ValueError, "x must have one"),
    "x with gaps": ({"x": np.ones(2 * N, np.float32)[::2]}, ValueError, "x must be C-contiguous"),
    "signed indices": ({"indices": np.array([1, 3])}, TypeError, "indices must be uint32"),
    "indices in a matrix": (
        {"indices": np.array([[1, 3]], np.uint32)},
        ValueError,
        "indices must have one dimension",
    ),
    "values of float64": ({"values": np.zeros(K)}, TypeError, "values must be float32"),
    "fewer values": ({"values": np.zeros(1, np.float32)}, ValueError, "values must have shape"),
    "more values": ({"values": np.zeros(3, np.float32)}, ValueError, "values must have shape"),
    "locked values": (
        {"values": locked(np.zeros(K, np.float32))},
        ValueError,
        "values is written to",
    ),
    "values off their place": (
        {"values": np.zeros(4 * K + 1, np.uint8)[1:].view(np.float32)},
        ValueError,
        "values must be aligned",
    ),
    "a longer residual": (
        {"residual": np.ones(N + 1, np.float32)},
        ValueError,
        "residual must have shape",
    ),
    "a residual of float16": (
        {"residual": np.ones(N, np.float16)},
        TypeError,
        "residual must be float32",
    ),
    "a locked residual": (
        {"residual": locked(np.ones(N, np.float32))},
        ValueError,
        "residual is written to",
    ),
    "a scale of zero": ({"loss_scale": 0.0}, ValueError, "scale must lie between"),
    "a negative scale": ({"loss_scale": -1.0}, ValueError, "scale must lie between"),
    "a scale that is no number": ({"loss_scale": np.nan}, ValueError, "scale must lie between"),
    "an infinite scale": ({"loss_scale": np.inf}, ValueError, "scale must lie between"),
}


@pytest.mark.parametrize("name", ["above", "at"])
@pytest.mark.parametrize(("wrong", "error", "message"), UNFIT.values(), ids=UNFIT)
def test_unfit_arguments_are_refused_and_nothing_is_written(
    name: str, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {
        "x": np.ones(N, np.float32),
        "indices": np.array([1, 3], np.uint32),
        "values": np.zeros(K, np.float32),
        "residual": np.ones(N, np.float32),
        "loss_scale": 1.0,
        **wrong,
    }
    before = {key: np.copy(value) for key, value in given.items()}
    more = {"threshold": 0.5} if name == "above" else {}
    with pytest.raises(error, match=message):
        (select_above if name == "above" else select_at)(**given, **more)
    assert all(np.array_equal(before[key], given[key], equal_nan=True) for key in given)


def test_indices_that_are_written_to_may_not_be_locked() -> None:
    indices, values = locked(np.array([1, 3], np.uint32)), np.zeros(2, np.float32)
    x = np.arange(10, dtype=np.float32)
    select_at(x, indices, values)
    assert values.tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="indices is written to"):
        select_above(x, 1.0, indices, values)


def test_refuses_a_reference_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="relative_to must be one of one, rms, max, not 'mean'"):
        above(select_above, np.zeros(3, np.float32), 1.0, 3, None, 1.0, "mean")


@pytest.mark.parametrize("indices", [[3, 3], [4, 3], [0, 10], [0, 2**32 - 1], [1, 2, 2]])
def test_select_at_refuses_indices_that_do_not_increase_below_n(indices: list[int]) -> None:
    x, residual = np.ones(10, np.float32), np.ones(10, np.float32)
    values = np.zeros(len(indices), np.float32)
    with pytest.raises(ValueError, match="not strictly increasing numbers below 10"):
        select_at(x, np.array(indices, np.uint32), values, residual=residual)
    assert (residual == 1).all()
    assert not values.any()


@on_every_backend
@pytest.mark.parametrize("kind", KINDS[1:])
def test_16_bit_gradients_are_widened_exactly(kind: str) -> None:
    x = (np.random.default_rng(3).standard_normal(999) * 4).astype(np.float32)
    narrow = as_kind(x, kind)
    check_at(narrow, np.arange(5, 990, 7, dtype=np.uint32), (4, 1024.0))
    for relative_to in ("one", "rms", "max"):
        check_above(narrow, 0.5, 999, (None, 1.0), relative_to)
        check_above(narrow, 0.5, 99, (4, 1024.0), relative_to)
