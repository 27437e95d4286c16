"""Plans: pure, deterministic, complete, and in the order that their policy names."""

from __future__ import annotations

import random

import pytest
from compressa.schedulers import (
    POLICIES,
    Conditions,
    Link,
    Plan,
    Transfer,
    auto,
    chunk_bytes,
    credit,
    credit_bytes,
    fifo,
    launches,
    merge,
    predict,
    priority,
)
from compressa.schedulers.credit import LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES
from hypothesis import given, settings
from hypothesis import strategies as st

SECONDS = st.floats(0, 1)
LINKS = st.builds(
    Link,
    bytes_per_s=st.floats(1e5, 1e9),
    latency_s=st.floats(0, 0.01),
    overhead_s=st.sampled_from([0.0, 1e-5, 1e-3]),
    chunk_bytes=st.sampled_from([None, 1 << 14, 1 << 18]),
)
CONDITIONS = st.builds(
    Conditions,
    link=st.none() | LINKS,
    compute_s=st.floats(0, 3),
)


@st.composite
def transfer_lists(draw: st.DrawFn) -> list[Transfer]:
    """Units of several rounds, of several hops and segments; measured or not."""
    measured = draw(st.booleans())
    result = []
    for unit in range(draw(st.integers(0, 10))):
        ready_s, need_s = (draw(SECONDS), draw(SECONDS)) if measured else (0.0, 0.0)
        segments = draw(st.integers(1, 3))
        for stage in range(segments * draw(st.integers(1, 3))):
            size = draw(st.integers(0, 1 << 20))
            codec_s = draw(st.sampled_from([0.0, 0.01])), draw(st.sampled_from([0.0, 0.02]))
            after = max(stage - segments, -1)
            result.append(Transfer(unit, stage, size, ready_s, need_s, *codec_s, after))
    return result


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25)
@given(transfers=transfer_lists(), conditions=CONDITIONS, seed=st.integers(0, 2**31))
def test_plan_is_complete_pure_and_independent_of_the_argument_order(
    policy: str, transfers: list[Transfer], conditions: Conditions, seed: int
) -> None:
    plan = POLICIES[policy](transfers, conditions, first_step=5)
    assert sorted(plan.order) == sorted((t.unit, t.stage) for t in transfers)
    assert plan.first_step == 5
    shuffled = list(transfers)
    random.Random(seed).shuffle(shuffled)
    assert POLICIES[policy](shuffled, conditions, first_step=5) == plan
    assert POLICIES[policy](transfers, conditions, first_step=5) == plan


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25)
@given(transfers=transfer_lists(), conditions=CONDITIONS)
def test_what_waits_comes_later_in_plans_and_launches(
    policy: str, transfers: list[Transfer], conditions: Conditions
) -> None:
    plan = POLICIES[policy](transfers, conditions)
    launched = {name: i for i, name in enumerate(launches(transfers, plan, conditions))}
    assert launched.keys() == plan.priorities.keys()
    for transfer in transfers:
        if transfer.waits_for >= 0:
            before, name = (transfer.unit, transfer.waits_for), (transfer.unit, transfer.stage)
            assert plan.priorities[before] < plan.priorities[name]
            assert launched[before] < launched[name]


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


def test_segments_that_wait_for_none_stay_together() -> None:
    """A stage's number says nothing of how many it waits for."""
    cut = [Transfer(unit, s, 1, after=max(s - 4, -1)) for unit in range(4) for s in range(8)]
    order = fifo(cut).order
    assert order[:4] == tuple((0, s) for s in range(4))
    assert order.index((0, 7)) < order.index((3, 0))


def test_what_takes_long_after_the_wire_is_due_earlier() -> None:
    slow = Transfer(0, 0, 1, need_s=1.0, decode_s=0.5)
    quick = Transfer(1, 0, 1, need_s=0.9)
    assert priority([slow, quick]).order == ((0, 0), (1, 0))


def test_launches_do_not_wait_for_what_is_readied_last() -> None:
    transfers = [Transfer(u, 0, 100, ready_s=u, need_s=9 - u) for u in range(4)]
    conditions = Conditions(Link(bytes_per_s=1000))
    plan = priority(transfers, conditions)
    assert plan.order[0] == (3, 0)
    assert launches(transfers, plan, conditions) == ((0, 0), (1, 0), (2, 0), (3, 0))
    unknown = single_stage(3)
    assert launches(unknown, priority(unknown)) == ((0, 0), (1, 0), (2, 0))


def test_without_a_link_plans_leave_sizes_to_the_transport_unless_they_are_fixed() -> None:
    for policy in POLICIES.values():
        plan = policy(single_stage(3))
        assert (plan.chunk_bytes, plan.credit_bytes, plan.groups) == (None, None, ())
        fixed = policy(single_stage(3), Conditions(chunk_bytes=7, credit_bytes=9))
        assert (fixed.chunk_bytes, fixed.credit_bytes) == (7, 9)


@given(total=st.integers(0, 10**12), link=LINKS)
def test_chunks_are_neither_tiny_nor_larger_than_the_transports(total: int, link: Link) -> None:
    size, most = chunk_bytes(total, link), link.chunk_bytes or MOST_CHUNK_BYTES
    assert min(LEAST_CHUNK_BYTES, most) <= size <= most


def test_chunks_are_of_the_best_size_of_the_model() -> None:
    link = Link(bytes_per_s=25e6, overhead_s=50e-6)

    def cost_s(size: float) -> float:
        return 17e6 / size * link.overhead_s + size / link.bytes_per_s

    best = chunk_bytes(17_000_000, link)
    assert all(cost_s(best) < cost_s(best * factor) for factor in (0.9, 1.1))


@settings(max_examples=40)
@given(transfers=transfer_lists(), link=LINKS, window=st.none() | st.integers(1, 1 << 20))
def test_credit_holds_at_least_a_chunk_and_no_chunk_is_larger_than_the_largest_message(
    transfers: list[Transfer], link: Link, window: int | None
) -> None:
    plan = credit(transfers, Conditions(link, credit_bytes=window))
    assert plan.chunk_bytes is not None
    assert plan.credit_bytes is not None
    largest = max((t.wire_bytes for t in transfers), default=0)
    assert plan.chunk_bytes <= max(largest, LEAST_CHUNK_BYTES)
    assert plan.chunk_bytes <= plan.credit_bytes
    assert plan.credit_bytes == (window or credit_bytes(link, plan.chunk_bytes))


@settings(max_examples=40)
@given(transfers=transfer_lists(), link=LINKS, compute_s=st.floats(0, 3))
def test_merged_and_chosen_steps_are_not_predicted_longer(
    transfers: list[Transfer], link: Link, compute_s: float
) -> None:
    conditions = Conditions(link, compute_s)
    step_s = {
        name: predict(transfers, policy(transfers, conditions), link, compute_s).step_s
        for name, policy in POLICIES.items()
    }
    assert step_s["merge"] <= step_s["credit"]
    assert step_s["auto"] == min(step_s.values())


def test_small_messages_are_merged_when_waiting_costs_less_than_one() -> None:
    link = Link(bytes_per_s=1e6, overhead_s=1e-3)
    small = [Transfer(u, 0, 100, ready_s=u * 1e-4, need_s=1.0) for u in range(5)]
    far = Transfer(5, 0, 100, ready_s=0.5, need_s=1.0)
    plan = merge([*small, far], Conditions(link))
    assert [sorted(group) for group in plan.groups] == [[(u, 0) for u in range(5)]]
    assert not merge([*small, far], Conditions(Link(1e6))).groups


def test_what_would_be_late_is_not_merged() -> None:
    """The first is due when it has left alone; the second may take its time."""
    link = Link(bytes_per_s=1e6, overhead_s=1e-3)
    late = Transfer(1, 0, 5000, ready_s=0.0, need_s=1.0)
    for need_s, merged in ((2e-3, False), (0.5, True)):
        plan = merge([Transfer(0, 0, 1000, 0.0, need_s), late], Conditions(link))
        assert bool(plan.groups) is merged


def test_stages_of_merged_units_are_merged_one_by_one() -> None:
    link = Link(bytes_per_s=1e6, overhead_s=1e-3)
    units = [Transfer(u, s, 100, need_s=1.0) for u in range(3) for s in range(2)]
    groups = merge(units, Conditions(link)).groups
    assert [sorted(g) for g in groups] == [[(0, s), (1, s), (2, s)] for s in range(2)]


def test_auto_says_what_it_took_and_why() -> None:
    transfers = [Transfer(u, 0, 10**6, u * 0.1, 1.0 + (4 - u) * 0.1) for u in range(5)]
    plan = auto(transfers, Conditions(Link(2e6, overhead_s=1e-4), compute_s=1.5))
    assert plan.policy in plan.reason.split(":")[0]
    assert all(name in plan.reason for name in ("credit", "merge", "priority", "fifo"))
    assert auto(transfers).policy == "priority"


def test_plan_refuses_what_contradicts_itself() -> None:
    order = ((0, 0), (1, 0), (2, 0))
    with pytest.raises(ValueError, match="twice"):
        Plan((*order, (0, 0)))
    for groups in ((((0, 0), (1, 0)), ((1, 0), (2, 0))), (((0, 0), (3, 0)),)):
        with pytest.raises(ValueError, match="group"):
            Plan(order, groups=groups)


def test_policies_refuse_transfers_that_make_no_sense() -> None:
    one = Transfer(0, 0, 1)
    for wrong in (
        [one, one],
        [Transfer(0, 1, 1)],
        [one, Transfer(0, 1, 1, after=1)],
        [Transfer(0, 0, -1)],
        [Transfer(0, 0, 1, ready_s=float("nan"))],
    ):
        with pytest.raises(ValueError, match=r"twice|waits for|at least 0"):
            fifo(wrong)


def test_links_and_conditions_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="bytes_per_s"):
        Link(0)
    with pytest.raises(ValueError, match="latency_s"):
        Link(1, latency_s=-1)
    with pytest.raises(ValueError, match="chunk_bytes"):
        Conditions(chunk_bytes=0)
