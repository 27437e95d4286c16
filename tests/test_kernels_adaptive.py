"""Selections whose size depends on the data: SIDCo, DGC, AdaComp, thresholds in units."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from compressa.kernels import (
    most_selected,
    scatter_add,
    select_above,
    select_adacomp,
    select_dgc,
    select_sidco,
)
from compressa.kernels.reference import adacomp, dgc, select, sidco
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, SCALES, gradients, poisoned, residual_for, same_bits

Select = Callable[..., int]
PAIRS: dict[str, tuple[Select, Select]] = {
    "above": (select_above, select.select_above),
    "adacomp": (select_adacomp, adacomp.select_adacomp),
    "dgc": (select_dgc, dgc.select_dgc),
    "sidco": (select_sidco, sidco.select_sidco),
}
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))


def run(
    function: Select,
    x: F32,
    arguments: tuple[Any, ...],
    room: int,
    residual: F32 | None,
    **more: Any,
) -> tuple[np.ndarray, F32]:
    indices, values = poisoned(room, np.uint32), poisoned(room, np.float32)
    count = function(x, *arguments, indices, values, residual=residual, **more)
    assert 0 <= count <= room
    return indices[:count], values[:count]


def same(
    name: str,
    x: F32,
    arguments: tuple[Any, ...],
    room: int,
    keep: tuple[int | None, float],
    **more: Any,
) -> bool:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    fast, specification = PAIRS[name]
    result = run(fast, x, arguments, room, ours, scale=keep[1], **more)
    with np.errstate(all="ignore"):
        expected = run(specification, x, arguments, room, specified, scale=keep[1], **more)
    equal = all(same_bits(a, b) for a, b in zip(result, expected, strict=True))
    return equal and (ours is None or specified is None or same_bits(ours, specified))


@given(gradients(), feedback, st.integers(1, 4), st.data())
def test_sidco_equals_reference(
    x: F32, keep: tuple[int | None, float], stages: int, data: st.DataObject
) -> None:
    if x.size:
        k, room = data.draw(st.integers(1, x.size)), data.draw(st.integers(0, x.size))
        assert same("sidco", x, (k, stages), room, keep)


@given(gradients(), feedback, st.data())
def test_dgc_equals_reference(x: F32, keep: tuple[int | None, float], data: st.DataObject) -> None:
    if x.size:
        k, sample = (data.draw(st.integers(1, x.size)) for _ in range(2))
        room = min(x.size, most_selected(k))
        assert same("dgc", x, (k, sample), room, keep)


@given(gradients(), feedback, st.sampled_from((1, 2, 7, 50, 500)), st.data())
def test_adacomp_equals_reference(
    x: F32, keep: tuple[int | None, float], bin_elems: int, data: st.DataObject
) -> None:
    assert same("adacomp", x, (bin_elems,), data.draw(st.integers(0, x.size)), keep)


@given(gradients(), feedback, st.sampled_from((0.0, 0.5, 1.0, 3.0)), st.data())
@pytest.mark.parametrize("unit", ["rms", "max"])
def test_thresholds_in_units_equal_reference(
    unit: str, x: F32, keep: tuple[int | None, float], threshold: float, data: st.DataObject
) -> None:
    room = data.draw(st.integers(0, x.size))
    assert same("above", x, (threshold,), room, keep, unit=unit)


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


KINDS = ["laplace", "normal", "heavy", "few values", "zero", "hot", "far out", "few", "not finite"]
N = 140_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [14, 1400])
def test_all_equal_reference_in_pieces(kind: str, k: int) -> None:
    x = drawn(kind, N)
    for keep in ((None, 1.0), (5, 3.0)):
        for stages in (1, 3):
            assert same("sidco", x, (k, stages), k + k // 5, keep)
        assert same("dgc", x, (k, 1400), most_selected(k), keep)
        assert same("adacomp", x, (50,), 20 * k, keep)
        assert same("above", x, (2.5,), 10 * k, keep, unit="rms")
        assert same("above", x, (0.25,), 10 * k, keep, unit="max")


@pytest.mark.parametrize("name", PAIRS)
def test_the_bits_do_not_depend_on_threads(name: str) -> None:
    x = drawn("heavy", 700_001)
    arguments: dict[str, tuple[Any, ...]] = {
        "above": (2.5,),
        "adacomp": (50,),
        "dgc": (700, 7000),
        "sidco": (700, 3),
    }
    room, residuals = 910, [residual_for(x, 5) for _ in range(2)]
    alone = run(PAIRS[name][0], x, arguments[name], room, residuals[0])
    with ThreadPoolExecutor(3) as pool, Team(pool, 3).enlisted():
        shared = run(PAIRS[name][0], x, arguments[name], room, residuals[1])
    assert all(same_bits(a, b) for a, b in zip(alone, shared, strict=True))
    assert residuals[0] is not None
    assert residuals[1] is not None
    assert same_bits(residuals[0], residuals[1])


@given(
    gradients(specials=FINITE[:6], magnitudes=(0.0, 1e-40, 1.0, 1e30)), st.sampled_from([*PAIRS])
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
    indices, values = run(PAIRS[name][0], x, arguments[name], room, residual)
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
            run(PAIRS[name][0], x, arguments, 2, None)
    with pytest.raises(ValueError, match="unit must be one of one, rms, max"):
        run(partial(select_above, unit="mean"), x, (1.0,), 2, None)  # type: ignore[arg-type]
