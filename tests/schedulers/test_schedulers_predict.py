"""Predictions: as worked out by hand, within what is possible, and preempted within a window."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from compressa.schedulers import (
    Conditions,
    Link,
    Plan,
    Prediction,
    Transfer,
    auto,
    credit,
    fifo,
    predict,
    priority,
)
from compressa.schedulers.auto import least_step_s
from compressa.schedulers.columns import Columns
from hypothesis import given, settings
from hypothesis import strategies as st

SECONDS = st.floats(0, 1)


@st.composite
def steps(draw: st.DrawFn, stages: int = 3) -> list[Transfer]:
    result = []
    for unit in range(draw(st.integers(1, 8))):
        ready_s, need_s = draw(SECONDS), draw(SECONDS)
        for stage in range(draw(st.integers(1, stages))):
            size = draw(st.integers(0, 200))
            codec_s = draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([0.0, 0.2]))
            result.append(Transfer(unit, stage, size, ready_s, need_s, *codec_s))
    return result


def layers(count: int, size: int, forward_s: float, backward_s: float) -> list[Transfer]:
    """A model of equal layers; the first is readied last and needed first."""
    each_f, each_b = forward_s / count, backward_s / count
    return [
        Transfer(u, 0, size, (u + 1) * each_b, backward_s + (count - 1 - u) * each_f)
        for u in range(count)
    ]


class Leg(NamedTuple):
    """What becomes of one transfer."""

    name: tuple[int, int]
    could_s: float
    began_s: float
    ended_s: float
    done_s: float


def legs_of(ahead: Prediction) -> list[Leg]:
    """In the order in which they begin to leave."""
    columns = (ahead.could_s, ahead.began_s, ahead.ended_s, ahead.done_s)
    return [Leg(ahead.columns.names[row], *(c[row] for c in columns)) for row in ahead.launched()]


def times(prediction: Prediction) -> dict[tuple[int, int], tuple[float, float]]:
    return {leg.name: (leg.began_s, leg.ended_s) for leg in legs_of(prediction)}


def test_one_transfer_takes_what_its_parts_take() -> None:
    one = Transfer(0, 0, 1000, ready_s=1.0, need_s=2.0, encode_s=0.5, decode_s=0.25)
    link = Link(bytes_per_s=1000, latency_s=0.125, overhead_s=0.0625)
    ahead = predict([one], Plan(((0, 0),)), link, compute_s=4.0)
    (leg,) = legs_of(ahead)
    assert (leg.could_s, leg.began_s, leg.ended_s, leg.done_s) == (1.5, 1.5, 2.5625, 2.9375)
    assert ahead.step_s == 4.9375
    assert (ahead.exposed_s, ahead.wire_s, ahead.ideal_s) == (0.9375, 1.0625, 4.0)


def test_an_urgent_message_passes_between_two_chunks() -> None:
    bulk, urgent = Transfer(0, 0, 400, 0.0, 9.0), Transfer(1, 0, 100, 1.5, 0.0)
    link = Link(bytes_per_s=100)
    order = ((1, 0), (0, 0))
    whole = times(predict([bulk, urgent], Plan(order), link))
    cut = times(predict([bulk, urgent], Plan(order, chunk_bytes=100), link))
    assert whole == {(0, 0): (0.0, 4.0), (1, 0): (4.0, 5.0)}
    assert cut == {(0, 0): (0.0, 5.0), (1, 0): (2.0, 3.0)}


def test_an_urgent_message_waits_for_what_has_been_handed_over() -> None:
    bulk, urgent = Transfer(0, 0, 800, 0.0, 9.0), Transfer(1, 0, 100, 1.5, 0.0)
    plan = Plan(((1, 0), (0, 0)), chunk_bytes=100, credit_bytes=300)
    ahead = times(predict([bulk, urgent], plan, Link(bytes_per_s=100)))
    # At 1.5 s chunks are handed over up to 4 s: half of one, and two more.
    assert ahead == {(0, 0): (0.0, 9.0), (1, 0): (4.0, 5.0)}


def test_a_window_too_small_for_the_latency_leaves_the_wire_idle() -> None:
    bulk, link = Transfer(0, 0, 400), Link(bytes_per_s=100, latency_s=1.0)
    small = Plan(((0, 0),), chunk_bytes=100, credit_bytes=100)
    assert times(predict([bulk], small, link)) == {(0, 0): (1.0, 8.0)}
    enough = Plan(((0, 0),), chunk_bytes=100, credit_bytes=200)
    assert times(predict([bulk], enough, link)) == {(0, 0): (0.0, 4.0)}


def test_a_stage_waits_for_the_answer_and_segments_fill_the_wire() -> None:
    link = Link(bytes_per_s=100, latency_s=1.0)
    chain = [Transfer(0, stage, 100) for stage in range(2)]
    assert times(predict(chain, fifo(chain), link))[0, 1] == (2.0, 3.0)
    cut = [Transfer(0, stage, 100, after=stage - 2 if stage > 1 else -1) for stage in range(4)]
    ahead = times(predict(cut, fifo(cut), link))
    assert [ahead[0, stage] for stage in range(4)] == [(s, s + 1.0) for s in range(4)]


def test_a_group_leaves_as_one_message() -> None:
    parts = [Transfer(0, 0, 100, 0.0), Transfer(1, 0, 100, 0.5)]
    link = Link(bytes_per_s=100, overhead_s=1.0)
    plan = Plan(((0, 0), (1, 0)), groups=(((0, 0), (1, 0)),))
    assert times(predict(parts, plan, link)) == {(0, 0): (0.5, 3.5), (1, 0): (0.5, 3.5)}
    apart = predict(parts, Plan(((0, 0), (1, 0))), link)
    assert apart.step_s == 4.0


def test_units_are_encoded_and_decoded_while_others_are_sent() -> None:
    """(c + w + d) n becomes c + n w + d where the wire takes longest."""
    units = [Transfer(u, 0, 100, encode_s=0.5, decode_s=0.25) for u in range(6)]
    assert predict(units, fifo(units), Link(bytes_per_s=100)).step_s == 0.5 + 6.0 + 0.25


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_priority_in_chunks_reaches_the_ideal_and_one_chunk(ratio: float) -> None:
    """The promise of ByteScheduler: max(F + B, C), and what cannot be avoided.

    That is the last gradient's own way: nobody can send it before it is there.
    """
    count, forward_s, backward_s, size = 40, 1.0, 2.0, 10_000
    model = layers(count, size, forward_s, backward_s)
    link = Link(count * size / (ratio * 3.0))
    conditions = Conditions(link, 3.0, chunk_bytes=1000)
    cut = predict(model, credit(model, conditions), link, 3.0)
    last_s, chunk_s = size / link.bytes_per_s, 1000 / link.bytes_per_s
    first_gradient_s = model[0].ready_s
    unavoidable_s = last_s if ratio < 1 else first_gradient_s + last_s
    assert cut.ideal_s == pytest.approx(3.0 * max(ratio, 1.0))
    assert cut.step_s <= cut.ideal_s + unavoidable_s + chunk_s
    in_order = predict(model, fifo(model), link, 3.0)
    assert in_order.step_s > 1.15 * cut.step_s if ratio >= 1 else in_order.step_s >= cut.step_s


def test_priority_without_chunks_waits_for_whole_messages() -> None:
    """One large layer, needed last, is on the wire when the first ones become ready."""
    large = Transfer(0, 0, 10_000, 0.5, 5.0)
    small = [Transfer(u, 0, 100, 0.5 + u * 0.1, 2.0 - u * 0.1) for u in range(1, 6)]
    model, link = [large, *small], Link(1000)
    whole = predict(model, priority(model), link)
    cut = predict(model, credit(model, Conditions(link, chunk_bytes=100)), link)
    # Whole, the last small one is there at 11 s, 9.1 s late; in chunks only the large one is late.
    assert whole.step_s == pytest.approx(5.0 + 9.1)
    assert cut.step_s == pytest.approx(5.0 + 6.0)


@settings(max_examples=80)
@given(
    transfers=steps(),
    rate=st.sampled_from([100.0, 1000.0]),
    latency_s=st.sampled_from([0.0, 0.1]),
    overhead_s=st.sampled_from([0.0, 0.01]),
    chunk=st.sampled_from([None, 7, 64]),
    compute_s=st.floats(0, 3),
    policy=st.sampled_from([fifo, priority, credit, auto]),
)
def test_a_step_is_no_shorter_than_the_ideal_and_no_longer_than_one_by_one(
    transfers: list[Transfer],
    rate: float,
    latency_s: float,
    overhead_s: float,
    chunk: int | None,
    compute_s: float,
    policy: object,
) -> None:
    link = Link(rate, latency_s, overhead_s)
    assert callable(policy)
    plan = policy(transfers, Conditions(link, compute_s, chunk_bytes=chunk))
    ahead = predict(transfers, plan, link, compute_s)
    assert ahead.step_s >= ahead.ideal_s - 1e-9
    latest_s = max(t.ready_s for t in transfers)
    codec_s = sum(t.encode_s + t.decode_s for t in transfers)
    serial_s = ahead.wire_s + codec_s + latency_s * len(transfers)
    assert ahead.step_s <= max(ahead.compute_s, latest_s) + ahead.compute_s + serial_s + 1e-9


@settings(max_examples=80)
@given(
    transfers=steps(),
    order=st.randoms(use_true_random=False),
    rate=st.sampled_from([100.0, 1000.0]),
    latency_s=st.sampled_from([0.0, 0.1]),
    overhead_s=st.sampled_from([0.0, 0.01]),
    chunk=st.sampled_from([None, 7, 64]),
)
def test_no_order_makes_a_step_shorter_than_the_bound(
    transfers: list[Transfer],
    order: random.Random,
    rate: float,
    latency_s: float,
    overhead_s: float,
    chunk: int | None,
) -> None:
    link = Link(rate, latency_s, overhead_s)
    names = [(t.unit, t.stage) for t in transfers]
    order.shuffle(names)
    ahead = predict(transfers, Plan(tuple(names), chunk_bytes=chunk), link)
    assert ahead.step_s >= least_step_s(Columns.of(transfers), link, 0.0)


@given(transfers=steps(stages=1), rate=st.sampled_from([100.0, 1000.0]))
def test_where_all_is_ready_at_once_priority_reaches_the_bound(
    transfers: list[Transfer], rate: float
) -> None:
    ready = [replace(t, ready_s=0.0, encode_s=0.0, decode_s=0.0) for t in transfers]
    link = Link(rate)
    step_s = predict(ready, priority(ready, Conditions(link)), link).step_s
    assert step_s == pytest.approx(least_step_s(Columns.of(ready), link, 0.0), rel=1e-8)


@settings(max_examples=80)
@given(transfers=steps(stages=1), chunk=st.integers(1, 200), latency_s=st.sampled_from([0.0, 0.3]))
def test_what_is_most_urgent_waits_for_one_window_at_most(
    transfers: list[Transfer], chunk: int, latency_s: float
) -> None:
    link = Link(100.0, latency_s)
    plan = credit(transfers, Conditions(link, chunk_bytes=chunk))
    assert plan.credit_bytes is not None
    (urgent,) = [
        leg for leg in legs_of(predict(transfers, plan, link)) if leg.name == plan.order[0]
    ]
    assert urgent.began_s - urgent.could_s <= plan.credit_bytes / link.bytes_per_s + 1e-9


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=8), chunk=st.integers(1, 100))
def test_nothing_is_inverted_when_all_is_ready(sizes: list[int], chunk: int) -> None:
    transfers = [Transfer(u, 0, size, need_s=1.0 + u) for u, size in enumerate(sizes)]
    link = Link(100.0)
    plan = credit(transfers, Conditions(link, chunk_bytes=chunk))
    legs = legs_of(predict(transfers, plan, link))
    assert [leg.name for leg in legs] == list(plan.order)
    assert all(a.ended_s <= b.began_s + 1e-9 for a, b in pairwise(legs))


@settings(max_examples=50)
@given(transfers=steps(stages=1))
def test_by_need_in_tiny_chunks_no_order_is_better(transfers: list[Transfer]) -> None:
    """Preempted at will, earliest due first makes the largest lateness smallest (Horn)."""
    link = Link(100.0)
    fluid = [Transfer(t.unit, 0, t.wire_bytes, t.ready_s, t.need_s) for t in transfers]
    due = predict(fluid, credit(fluid, Conditions(link, chunk_bytes=1)), link).step_s
    for other in (fifo(fluid), Plan(tuple(reversed(fifo(fluid).order)), chunk_bytes=1)):
        assert due <= predict(fluid, other, link).step_s + len(fluid) * 0.01 + 1e-9


def test_a_plan_for_other_transfers_is_refused() -> None:
    with pytest.raises(ValueError, match="not for these"):
        predict([Transfer(0, 0, 1)], Plan(((1, 0),)), Link(1.0))


def test_groups_that_wait_for_each_other_are_refused() -> None:
    units = [Transfer(u, s, 1) for u in range(2) for s in range(2)]
    crossed = Plan(priority(units).order, groups=(((0, 0), (1, 1)), ((1, 0), (0, 1))))
    with pytest.raises(ValueError, match="wait for each other"):
        predict(units, crossed, Link(1.0))


def test_nothing_to_send_is_a_step_of_computing() -> None:
    ahead = predict([], Plan(()), Link(1.0), compute_s=2.0)
    assert (ahead.step_s, ahead.wire_s, legs_of(ahead)) == (2.0, 0.0, [])
