"""Slots: a server hears one worker at a time, its port is as busy as before, sums are the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from _server_world import ServerWorld
from hypothesis import given
from hypothesis import strategies as st

from compressa.errors import PayloadError
from compressa.parameter_server import Worker
from compressa.parameter_server.slots import _PAYLOAD, ServerTime, Slots, write_word
from compressa.transports.loopback import Loopback, VirtualClock

RATE_BYTES_PER_S = 1e6
PORT_BITS_PER_S = 8 * RATE_BYTES_PER_S / _PAYLOAD
SERVER = 4
STEPS = 3
SCHEDULES: tuple[dict[str, float], ...] = ({}, {"server_bits_per_s": PORT_BITS_PER_S})
KEYS = {"a": (300, 100), "b": (100, 100), "c": (50, 100)}

sizes = st.lists(st.integers(1, 100_000), min_size=1, max_size=6)
calls = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


def sending(
    shards: list[int], calls_s: list[float], workers: int | None = None
) -> list[tuple[float, float, int]]:
    """When workers send what, if each announces all shards at its own time."""
    clock = VirtualClock()
    workers = workers or len(calls_s)
    slots = Slots(PORT_BITS_PER_S, workers, lambda: clock.now_s, clock.at)
    found = []

    def given(shard: int, wait_s: float) -> None:
        begin_s = clock.now_s + wait_s
        found.append((begin_s, begin_s + shards[shard] / RATE_BYTES_PER_S, shard))

    def announce() -> None:
        for shard, size in enumerate(shards):
            slots.ask(0, shard, size, partial(given, shard))

    for call_s in calls_s:
        clock.at(call_s, announce)
    clock.run()
    assert len(found) == len(calls_s) * len(shards)
    assert bool(slots._rounds) == (workers > len(calls_s))  # nothing is kept of what is over
    return sorted(found)


def way_s(size: int) -> float:
    """How long a word to a worker may take, if there are no answers."""
    return min(0.5 * size / RATE_BYTES_PER_S, 0.005)


@given(sizes, st.integers(1, 6))
def test_of_workers_that_come_at_once_a_server_hears_one_after_the_other_round_by_round(
    shards: list[int], workers: int
) -> None:
    found = sending(shards, [5.0] * workers)
    assert 5.0 < found[0][0] <= 5.0 + way_s(shards[0])
    for (_, end_s, _), (begin_s, _, shard) in pairwise(found):
        assert begin_s == pytest.approx(max(end_s, 5.0 + way_s(shards[shard])))
    assert [shard for _, _, shard in found] == [
        shard for shard in range(len(shards)) for _ in range(workers)
    ]


@given(sizes, calls, st.integers(0, 2))
def test_whenever_workers_come_a_server_hears_one_at_a_time_and_is_idle_only_if_nobody_waits(
    shards: list[int], calls_s: list[float], absent: int
) -> None:
    """And whoever else never comes; before a slot the port may be idle for a word's way."""
    found = sending(shards, calls_s, len(calls_s) + absent)
    for (_, end_s, _), (begin_s, _, _) in pairwise(found):
        assert begin_s >= end_s - 1e-9
    due_s = 0.0
    for call_s in sorted(calls_s):
        due_s = max(due_s, call_s) + sum(shards) / RATE_BYTES_PER_S
    assert found[-1][1] <= due_s + len(calls_s) * sum(map(way_s, shards)) + 1e-6


@given(sizes, calls)
def test_who_comes_last_waits_for_what_was_given_and_for_nothing_else(
    shards: list[int], calls_s: list[float]
) -> None:
    """That is the others' slots in the round, and one that the port would have been idle for."""
    lengths_s = [size / RATE_BYTES_PER_S for size in shards]
    last_s = 1.0 + max(calls_s)
    first = [slot for slot in sending(shards, [*calls_s, last_s]) if slot[2] == 0]
    most_s = len(calls_s) * lengths_s[0] + max(lengths_s) + 0.005
    assert first[-1][0] <= last_s + most_s + 1e-6


def test_a_slot_leaves_a_word_the_time_to_wait_for_answers_within_a_limit() -> None:
    now_s, size, waits_s = 5.0, 8_000, []
    slots = Slots(PORT_BITS_PER_S, 3, lambda: now_s, lambda time_s, function: None)
    for answer_bytes in (0, 6_000, 100_000):
        slots.note_answer(answer_bytes)
        slots.ask(0, 0, size, waits_s.append)
        now_s += 1.0
        slots.note_answer(0)
    assert waits_s == pytest.approx([0.004, 0.006, 0.01])


late = st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 60.0)), min_size=1, max_size=20)


@given(st.floats(-1e4, 1e4), late)
def test_a_word_that_comes_late_makes_no_slot_late_once_one_was_quick(
    ahead_s: float, words: list[tuple[float, float]]
) -> None:
    """Each takes its own time on its way; the first of all takes none."""
    server = ServerTime(3, 60.0)
    assert server.begin_s(write_word(50.0, 1.0), 50.0 + ahead_s) == pytest.approx(51.0 + ahead_s)
    for number, (way_s, wait_s) in enumerate(words):
        sent_s = 50.0 + number
        now_s = sent_s + way_s + ahead_s
        begin_s = server.begin_s(write_word(sent_s, wait_s), now_s)
        assert begin_s == pytest.approx(sent_s + wait_s + ahead_s, abs=1e-4 * (number + 1.1))


@pytest.mark.parametrize("wait_s", [-1e-9, 60.1, math.inf, -math.inf, math.nan])
def test_a_wait_that_makes_no_sense_is_refused(wait_s: float) -> None:
    with pytest.raises(PayloadError, match="rank 3 gives a slot"):
        ServerTime(3, 60.0).begin_s(write_word(0.0, wait_s), 0.0)
    with pytest.raises(PayloadError, match="rank 3 gives a slot"):
        ServerTime(3, 60.0).begin_s(write_word(wait_s - wait_s + math.nan, 0.0), 0.0)


def values(workers: int, step: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(step)
    return [{name: torch.randn(shape) for name, shape in KEYS.items()} for _ in range(workers)]


@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("compressor", ["none", "int8"])
def test_slots_change_no_bit_and_hardly_any_time(compressor: str, *, colocated: bool) -> None:
    plain, slotted = (in_time(schedule, compressor, 1e-4, colocated) for schedule in SCHEDULES)
    for step, other in zip(plain[0], slotted[0], strict=True):
        for mine, its in zip(step, other, strict=True):
            assert all(torch.equal(mine[name], its[name]) for name in KEYS)
    assert slotted[1] <= 1.02 * plain[1]


def test_where_words_take_half_a_slot_the_port_is_idle_before_the_first_one_only() -> None:
    """A step takes a round trip longer, to announce it, and the way of its first word."""
    latency_s = 0.06  # of slots of 0.12, 0.04 and 0.02 s
    plain, slotted = (in_time(schedule, "none", latency_s, False) for schedule in SCHEDULES)
    assert slotted[1] <= 1.01 * plain[1] + STEPS * (2 * latency_s + 0.005)


def in_time(
    schedule: dict[str, float], compressor: str, latency_s: float, colocated: bool
) -> tuple[list[list[dict[str, torch.Tensor]]], float]:
    """By step and worker what it gets, and how long all of it takes."""
    config = {"compressor": {"name": compressor}, "schedule": schedule}
    loopback = Loopback(5, latency_s=latency_s, bandwidth_bytes_per_s=RATE_BYTES_PER_S)
    servers = None if colocated else 1
    world = ServerWorld(5, KEYS, config, servers=servers, colocated=colocated, loopback=loopback)
    results = [world.step(values(len(world.workers), step)) for step in range(STEPS)]
    time_s = loopback.clock.now_s
    world.close()
    return results, time_s


def noting(
    carry: Callable[..., None],
    loopback: Loopback,
    sent: list[tuple[float, int]],
    sender: int,
    receiver: int,
    size_bytes: int,
    left: Callable[[], None],
    arrive: Callable[[], None],
) -> None:
    """Carry a message; note when it has left, if it goes to the server."""

    def leaves() -> None:
        if receiver == SERVER:
            sent.append((loopback.clock.now_s, size_bytes))
        left()

    carry(sender, receiver, size_bytes, leaves, arrive)


@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.5, 5.0])
def test_in_slots_hardly_anything_waits_before_the_port(
    late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting is what the port gets earlier than it can take; nor if a worker is late."""
    largest = max(4 * math.prod(shape) for shape in KEYS.values())
    peak, time_s = pushed({"server_bits_per_s": PORT_BITS_PER_S}, late_s, monkeypatch)
    assert peak <= 1.02 * largest
    at_once_peak, at_once_s = pushed({}, late_s, monkeypatch)
    assert time_s <= 1.02 * at_once_s
    assert at_once_peak >= 3 * largest


def pushed(
    schedule: dict[str, float], late_s: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float]:
    """Have workers push, one of them late; return the peak before the port, and the time."""
    loopback = Loopback(5, bandwidth_bytes_per_s=RATE_BYTES_PER_S)
    sent: list[tuple[float, int]] = []
    monkeypatch.setattr(loopback, "carry", partial(noting, loopback.carry, loopback, sent))
    config = {"schedule": schedule}
    world = ServerWorld(5, KEYS, config, servers=1, colocated=False, loopback=loopback)
    handles = []

    def push(worker: Worker, mine: dict[str, torch.Tensor]) -> None:
        worker.push(list(mine), list(mine.values()))
        handles.append((worker, worker.pull(list(mine))))

    for worker, mine in zip(world.workers, values(4, 0), strict=True):
        begin_s = late_s if worker.rank == 0 else 0.0
        loopback.clock.at(begin_s, partial(push, worker, mine))
    loopback.clock.run()
    for worker, handle in handles:
        worker.wait(handle)
    time_s = loopback.clock.now_s
    world.close()
    return backlog(sorted(sent)), time_s


def backlog(sent: list[tuple[float, int]]) -> float:
    """The most bytes that have left their senders and that a port has not taken."""
    peak, waiting, before_s = 0.0, 0.0, 0.0
    for time_s, size in sent:
        waiting = max(0.0, waiting - (time_s - before_s) * RATE_BYTES_PER_S) + size
        peak, before_s = max(peak, waiting), time_s
    return peak
