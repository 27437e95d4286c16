from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels import scatter_add, select_above, select_at
from compressa.kernels.reference import select as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, SCALES, gradients, poisoned, residual_for, same_bits

feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))


def above(
    function: object, x: F32, threshold: float, room: int, residual: F32 | None, scale: float
) -> tuple[np.ndarray, F32]:
    indices, values = poisoned(room, np.uint32), poisoned(room, np.float32)
    count = function(x, threshold, indices, values, residual=residual, scale=scale)  # type: ignore[operator]
    assert same_bits(values[count:], poisoned(room - count, np.float32))
    return indices[:count], values[:count]


def same_above(x: F32, threshold: float, room: int, keep: tuple[int | None, float]) -> bool:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    result = above(select_above, x, threshold, room, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = above(reference.select_above, x, threshold, room, specified, keep[1])
    same = all(same_bits(a, b) for a, b in zip(result, expected, strict=True))
    return same and (ours is None or specified is None or same_bits(ours, specified))


@given(gradients(), st.sampled_from((0.0, 1e-45, 0.5, 1.0, 2.0, 1e30, np.inf)), feedback, st.data())
def test_select_above_equals_reference(
    x: F32, threshold: float, keep: tuple[int | None, float], data: st.DataObject
) -> None:
    assert same_above(x, threshold, data.draw(st.integers(0, x.size)), keep)


@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.5, 3.3, 100.0])
@pytest.mark.parametrize("room", [0, 1, 700, 20_000, 150_000])
def test_select_above_equals_reference_in_pieces(threshold: float, room: int) -> None:
    x = np.random.default_rng(1).standard_normal(150_000).astype(np.float32)
    assert same_above(x, threshold, room, (None, 1.0))
    assert same_above(x, threshold, room, (3, 1.0))
    assert same_above(np.round(x), threshold, room, (None, 1.0))


@given(gradients(specials=FINITE), st.sampled_from((0.0, 0.5, 2.0)))
def test_select_above_finds_all_that_reach_the_threshold(x: F32, threshold: float) -> None:
    indices, values = above(select_above, x, threshold, x.size, None, 1.0)
    assert indices.tolist() == np.flatnonzero(np.abs(x) >= np.float32(threshold)).tolist()
    assert same_bits(values, x[indices])


@pytest.mark.parametrize("threshold", [-1.0, np.nan])
def test_refuses_useless_thresholds(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must"):
        above(select_above, np.zeros(3, np.float32), threshold, 3, None, 1.0)


def test_refuses_more_room_than_elements() -> None:
    with pytest.raises(ValueError, match="no more room than n = 3"):
        above(select_above, np.zeros(3, np.float32), 1.0, 4, None, 1.0)


def some_of(n: int, data: st.DataObject) -> np.ndarray:
    chosen = data.draw(st.sets(st.integers(0, n - 1), max_size=20)) if n else set()
    return np.array(sorted(chosen), np.uint32)


def same_at(x: F32, indices: np.ndarray, keep: tuple[int | None, float]) -> bool:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    result, expected = poisoned(indices.size, np.float32), poisoned(indices.size, np.float32)
    select_at(x, indices, result, residual=ours, scale=keep[1])
    with np.errstate(all="ignore"):
        reference.select_at(x, indices, expected, residual=specified, scale=keep[1])
    kept = ours is None or specified is None or same_bits(ours, specified)
    return kept and same_bits(result, expected)


@given(gradients(), feedback, st.data())
def test_select_at_equals_reference(
    x: F32, keep: tuple[int | None, float], data: st.DataObject
) -> None:
    assert same_at(x, some_of(x.size, data), keep)


@pytest.mark.parametrize("bad", [False, True])
def test_select_at_does_not_depend_on_threads(bad: bool) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal(1_000_003).astype(np.float32)
    x[999_999] = np.nan if bad else 1.0
    indices = np.flatnonzero(random.random(x.size) < 0.01).astype(np.uint32)
    with ThreadPoolExecutor(3) as pool, Team(pool, 3).enlisted():
        assert same_at(x, indices, (5, 1.0))


@given(gradients(specials=FINITE[:6], magnitudes=(1.0, 1e-40, 1e30)), st.data())
def test_every_element_is_either_sent_or_kept(x: F32, data: st.DataObject) -> None:
    residual, indices = residual_for(x, 7), some_of(x.size, data)
    assert residual is not None
    p, values = x + residual, poisoned(indices.size, np.float32)
    select_at(x, indices, values, residual=residual)
    assert not residual[indices].any()
    scatter_add(indices, values, residual)
    assert np.array_equal(residual, p)


@pytest.mark.parametrize("indices", [[3, 3], [4, 3], [0, 10]])
def test_select_at_refuses_indices_that_do_not_increase_below_n(indices: list[int]) -> None:
    x, residual, values = np.ones(10, np.float32), np.ones(10, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="not strictly increasing numbers below 10"):
        select_at(x, np.array(indices, np.uint32), values, residual=residual)
    assert (residual == 1).all()
    assert not values.any()


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_16_bit_gradients_are_widened_exactly(dtype: type) -> None:
    x = (np.random.default_rng(3).standard_normal(999) * 4).astype(np.float16)
    x = (x.astype(np.float32).view(np.uint32) >> 16).astype(dtype) if dtype is np.uint16 else x
    assert same_at(x, np.arange(5, 990, 7, dtype=np.uint32), (4, 1024.0))
    assert same_above(x, 1.5, 999, (None, 1.0))
