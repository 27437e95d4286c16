"""Profiles and plans: what ranks tell each other is checked, and means the same on all."""

from __future__ import annotations

import random

import numpy as np
import pytest
from compressa.schedulers import Name, Plan, Profile, UnitTimes
from hypothesis import given
from hypothesis import strategies as st

from compressa.engine.measuring.profiler import Profiler
from compressa.engine.units.phase import StepPlan
from compressa.engine.units.planning import read, written

TIMES = st.floats(0, 1e3)
UNITS = st.builds(UnitTimes, TIMES, TIMES, TIMES, TIMES)


def profiles(units: int) -> st.SearchStrategy[Profile]:
    return st.builds(Profile, st.tuples(*[UNITS] * units), TIMES, TIMES)


@st.composite
def step_plans(draw: st.DrawFn) -> tuple[StepPlan, list[Name]]:
    """A step plan, and the transfers that it is for."""
    stages = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    names = [(unit, stage) for unit, count in enumerate(stages) for stage in range(count)]
    order = draw(st.permutations(names))
    launches = draw(st.permutations(draw(st.lists(st.sampled_from(names), unique=True))))
    grouped = draw(st.permutations(names))
    cut = draw(st.integers(0, len(names)))
    groups = [tuple(sorted(g, key=order.index)) for g in (grouped[:cut], grouped[cut:])]
    fused = sorted((g for g in groups if len(g) > 1), key=lambda g: order.index(g[0]))
    return StepPlan(Plan(tuple(order), 7, groups=tuple(fused)), launches), names


@given(step_plans())
def test_a_course_arrives_as_it_was_sent(made: tuple[StepPlan, list[Name]]) -> None:
    step_plan, names = made
    assert read(written(step_plan, names), names, set(step_plan.launches), 7) == step_plan


@given(step_plans(), st.data())
def test_what_is_no_step_plan_is_refused(
    made: tuple[StepPlan, list[Name]], data: st.DataObject
) -> None:
    step_plan, names = made
    ordered = set(step_plan.launches)
    sound = np.frombuffer(written(step_plan, names), "<u4")
    position = data.draw(st.integers(0, len(sound) - 1))
    broken = sound.copy()
    broken[position] = data.draw(st.sampled_from([2**32 - 1, len(names)]))
    with pytest.raises(ValueError, match=r"position|launches"):
        read(broken.tobytes(), names, ordered, 7)
    with pytest.raises(ValueError, match="order of"):
        read(sound[:-1].tobytes(), names, ordered, 7)


@given(st.integers(0, 5).flatmap(lambda n: st.lists(profiles(n), min_size=1, max_size=4)))
def test_merged_profiles_are_the_slowest_in_whatever_order(parts: list[Profile]) -> None:
    merged = Profile.merged(parts)
    assert merged == Profile.merged(random.Random(1).sample(parts, len(parts)))
    assert Profile.merged([merged, *parts]) == merged
    for part in parts:
        pairs = zip(merged.numbers(), part.numbers(), strict=True)
        assert all(slowest >= own for slowest, own in pairs)
        assert part.drift(part) == 0


@pytest.mark.parametrize("numbers", [[1.0], [0, 0, 1], [0, -1.0], [0, float("nan")], [1e999, 0]])
def test_numbers_that_are_no_profile_are_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="profile"):
        Profile.of(numbers)


def test_drift_is_measured_against_the_step() -> None:
    before = Profile((UnitTimes(ready_s=0.1),), forward_s=0.1, backward_s=0.3)
    after = Profile((UnitTimes(ready_s=0.2),), forward_s=0.1, backward_s=0.3)
    assert before.drift(after) == pytest.approx(0.25)
    assert Profile((UnitTimes(),)).drift(Profile((UnitTimes(),))) == 0


def test_a_profile_is_the_median_of_the_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    profiler = Profiler([frozenset("ab"), frozenset("b")], steps=3)
    assert profiler.profile() == Profile((UnitTimes(), UnitTimes()))
    profiler.forward({"a": 0.5, "b": 0.25}, 0.75)
    for step, ready_s in enumerate([9.0, 9.0, 1.0, 3.0, 2.0]):
        now_s = 100.0 * step
        profiler.backward()
        now_s += 0.5
        profiler.begin()
        now_s += ready_s
        profiler.ready([0])
        profiler.ready([1])
        for unit in (0, 1):
            profiler.computed([unit], "encode", 0.125 * ready_s)
            profiler.computed([unit], "decode", 0.25)
            profiler.computed([unit], "decode", 0.25)
    first, second = UnitTimes(2.5, 0.25, 0.25, 0.5), UnitTimes(2.5, 0.25, 0.25, 0.5)
    assert profiler.profile() == Profile((first, second), 0.75, 2.5)
