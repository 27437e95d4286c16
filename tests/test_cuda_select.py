"""The CUDA kernels of selection by threshold and index, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import _select, select
from compressa.kernels.cuda._device import HOME, running_on, source_text
from compressa.kernels.reference import select as reference
from compressa.kernels.select import Unit
from emulated_cuda import Emulated, on_emulated_cuda, run_text
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
thresholds = st.sampled_from((0.0, -0.0, 1e-50, 1e-45, 0.5, 1.0, 2.0, 1e30, 1e300, np.inf))
units = st.sampled_from(("one", "rms", "max"))
LARGER = (2047, 2048, 2049, 4099, 16385, 70_001)


def same_above(
    x: Any, threshold: float, room: int, keep: tuple[int | None, float], unit: Unit = "one"
) -> bool:
    results = []
    for module in (select, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        out = poisoned(room, np.uint32), poisoned(room, np.float32)
        with np.errstate(all="ignore"):
            count = module.select_above(
                x, threshold, *out, unit=unit, residual=residual, scale=keep[1]
            )
        results.append((count, *out, residual))
    (count, *ours), (due, *specified) = results
    same = (a is None or same_bits(a, b) for a, b in zip(ours, specified, strict=True))
    return count == due and all(same)


@given(gradients(), st.sampled_from(KINDS), thresholds, units, feedback, st.data())
def test_select_above_equals_reference(
    x: F32,
    kind: str,
    threshold: float,
    unit: Unit,
    keep: tuple[int | None, float],
    data: st.DataObject,
) -> None:
    room = data.draw(st.integers(0, x.size))
    assert same_above(as_kind(x, kind), threshold, room, keep, unit)


@settings(max_examples=30)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    thresholds,
    units,
    feedback,
    st.sampled_from((0.0, 0.001, 0.01, 0.3, 1.0)),
)
def test_select_above_of_more_than_a_tile_equals_reference(
    x: F32,
    kind: str,
    threshold: float,
    unit: Unit,
    keep: tuple[int | None, float],
    fraction: float,
) -> None:
    assert same_above(as_kind(x, kind), threshold, int(fraction * x.size), keep, unit)


@pytest.mark.parametrize("unit", ["one", "rms", "max"])
@pytest.mark.parametrize("tails", [0.5, 3.0])
def test_select_above_equals_reference_where_there_is_a_sample(unit: Unit, tails: float) -> None:
    n = 90_001
    x = np.random.default_rng(4).standard_t(tails, n)
    x = np.clip(x, -1e38, 1e38).astype(np.float32)
    for threshold in (0.0, 0.01, 0.7, 2.5, 100.0):
        for room in (0, 1, 700, n // 3, n):
            assert same_above(x, threshold, room, (None if room % 2 else 5, 1.0), unit)


def test_a_threshold_may_be_no_number_once_multiplied() -> None:
    assert same_above(np.zeros(100, np.float32), np.inf, 100, (None, 1.0), "max")
    assert same_above(np.zeros(70_000, np.float32), np.inf, 100, (None, 1.0), "rms")


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


def same_at(x: Any, indices: np.ndarray, keep: tuple[int | None, float]) -> bool:
    results = []
    for module in (select, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        values = poisoned(indices.size, np.float32)
        with np.errstate(all="ignore"):
            module.select_at(x, indices, values, residual=residual, scale=keep[1])
        results.append((values, residual))
    return all(a is None or same_bits(a, b) for a, b in zip(*results, strict=True))


@given(gradients(), st.sampled_from(KINDS), feedback, st.data())
def test_select_at_equals_reference(
    x: F32, kind: str, keep: tuple[int | None, float], data: st.DataObject
) -> None:
    assert same_at(as_kind(x, kind), some_of(x.size, data), keep)


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_select_at_of_more_than_all_threads_equals_reference(bad: bool, scale: float) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal(50_003).astype(np.float32)
    x[49_999] = np.nan if bad else 3e38
    indices = np.flatnonzero(random.random(x.size) < 0.4).astype(np.uint32)
    for seed in (None, 5):
        assert same_at(x, indices, (seed, scale))
        assert same_at(x, indices[:0], (seed, scale))


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int
) -> None:
    inner, k = slice(shift, -shift), 300
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    given = poisoned(k + 2 * shift, np.uint32), poisoned(k + 2 * shift, np.float32), kept
    due = [array.copy() for array in given]
    for module, (indices, values, left) in ((select, given), (reference, due)):
        options: dict[str, Any] = {"residual": left[inner], "scale": 3.0}
        x, room = whole[inner], (indices[inner], values[inner])
        module.select_above(x, 0.5, *room, unit="rms", **options)
        module.select_at(x, *room, **options)
    for array, expected in zip(given, due, strict=True):
        assert same_bits(array, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(70_001).astype(np.float32)
    with running_on(Emulated(1000 * seed)):
        assert same_above(x, 1.0, 9000, (1, 1.0), "rms")
        assert same_above(np.round(x), 1.0, 9000, (1, 1.0))
        assert same_at(x, np.arange(3, 70_000, 7, dtype=np.uint32), (1, 3.0))


def test_the_launcher_and_the_kernels_have_the_same_sizes() -> None:
    text = (HOME / "_select.cuh").read_text() + (HOME / "select.cu").read_text()
    for name, number in (
        ("STATE_WORDS", _select.STATE_WORDS),
        ("SAMPLE", _select.SAMPLE),
        ("TILE", _select.TILE),
    ):
        assert f"constexpr int {name} = {number};" in text
