"""Plans: pure, deterministic, complete, and in the order that their policy names."""

from __future__ import annotations

import random

import pytest
from compressa.schedulers import POLICIES, Plan, Transfer, fifo, priority
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def transfer_lists(draw: st.DrawFn, measured: bool = False) -> list[Transfer]:
    units = draw(st.integers(0, 12))
    result = []
    for unit in range(units):
        times = st.floats(0, 1) if measured else st.just(0.0)
        ready_s, need_s = draw(times), draw(times)
        for stage in range(draw(st.integers(1, 3))):
            size = draw(st.integers(0, 1 << 20))
            result.append(Transfer(unit, stage, size, ready_s, need_s))
    return result


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=40)
@given(transfers=transfer_lists(measured=True), seed=st.integers(0, 2**31))
def test_plan_is_complete_pure_and_independent_of_the_argument_order(
    policy: str, transfers: list[Transfer], seed: int
) -> None:
    plan = POLICIES[policy](transfers, first_step=5)
    assert sorted(plan.order) == sorted((t.unit, t.stage) for t in transfers)
    assert plan.first_step == 5
    shuffled = list(transfers)
    random.Random(seed).shuffle(shuffled)
    assert POLICIES[policy](shuffled, first_step=5) == plan
    assert POLICIES[policy](transfers, first_step=5) == plan


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=40)
@given(transfers=transfer_lists(measured=True))
def test_stages_of_a_unit_keep_their_order(policy: str, transfers: list[Transfer]) -> None:
    places = POLICIES[policy](transfers).places
    for transfer in transfers:
        if transfer.stage:
            assert places[transfer.unit, transfer.stage - 1] < places[transfer.unit, transfer.stage]


def single_stage(count: int) -> list[Transfer]:
    return [Transfer(unit, 0, 100) for unit in range(count)]


def test_fifo_follows_the_units_and_priority_reverses_them() -> None:
    assert fifo(single_stage(4)).order == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert priority(single_stage(4)).order == ((3, 0), (2, 0), (1, 0), (0, 0))


def test_measured_times_overrule_numbers() -> None:
    times = [0.3, 0.1, 0.2]
    by_ready = [Transfer(unit, 0, 1, ready_s=t) for unit, t in enumerate(times)]
    by_need = [Transfer(unit, 0, 1, need_s=t) for unit, t in enumerate(times)]
    assert fifo(by_ready).order == ((1, 0), (2, 0), (0, 0))
    assert priority(by_need).order == ((1, 0), (2, 0), (0, 0))


def test_later_stages_let_other_units_pass() -> None:
    transfers = [Transfer(unit, stage, 1) for unit in range(4) for stage in range(2)]
    order = fifo(transfers).order
    assert order.index((0, 1)) > order.index((1, 0))
    assert order.index((0, 1)) < order.index((3, 0))


def test_plan_refuses_duplicates() -> None:
    with pytest.raises(ValueError, match="twice"):
        Plan(((0, 0), (1, 0), (0, 0)))


def test_plan_knows_the_place_of_each_transfer() -> None:
    plan = Plan(((2, 0), (0, 0), (2, 1)))
    assert [plan.places[key] for key in plan.order] == [0, 1, 2]
