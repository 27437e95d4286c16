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
from compressa.parameter_server.slots import _PAYLOAD, ServerTime, Slots, write_word
from compressa.transports.loopback import Loopback

RATE_BYTES_PER_S = 1e6
PORT_BITS_PER_S = 8 * RATE_BYTES_PER_S / _PAYLOAD
SERVER = 4
KEYS = {"a": (300, 100), "b": (100, 100), "c": (50, 100)}

sizes = st.lists(st.integers(1, 100_000), min_size=1, max_size=6)
calls = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


def sending(shards: list[int], calls_s: list[float]) -> list[tuple[float, float]]:
    """When workers send, if they announce all shards at their own times."""
    now_s = 0.0
    slots = Slots(PORT_BITS_PER_S, len(calls_s), lambda: now_s)
    found = []
    for now_s in sorted(calls_s):
        for shard, size in enumerate(shards):
            begin_s = now_s + slots.wait_s(0, shard, size)
            found.append((begin_s, begin_s + size / RATE_BYTES_PER_S))
    assert not slots._rounds  # nothing is kept of rounds that are over
    return sorted(found)


@given(sizes, st.integers(1, 6))
def test_a_server_hears_one_worker_at_a_time_and_is_never_idle(
    shards: list[int], workers: int
) -> None:
    found = sending(shards, [5.0] * workers)
    way_s = found[0][0] - 5.0
    assert 0 < way_s <= min(0.5 * shards[0] / RATE_BYTES_PER_S, 0.005) + 1e-9
    for (_, end_s), (begin_s, _) in pairwise(found):
        assert begin_s == pytest.approx(end_s)


@given(sizes, calls)
def test_who_comes_within_its_round_takes_nobody_elses_time(
    shards: list[int], calls_s: list[float]
) -> None:
    """And who comes later sends at once, beside others; the last byte is never later for it."""
    found = sending(shards, calls_s)
    work_s = len(calls_s) * sum(shards) / RATE_BYTES_PER_S
    last_s = max(end_s for _, end_s in found)
    longest_s = max(shards) / RATE_BYTES_PER_S
    end_s = max(min(calls_s) + work_s, max(calls_s) + longest_s)
    assert last_s <= end_s + 0.005 * len(shards) + 1e-6  # words' ways, where the port is free


late = st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 60.0)), min_size=1, max_size=20)


@given(st.floats(-1e4, 1e4), late)
def test_a_word_that_comes_late_makes_no_slot_late_once_one_was_quick(
    ahead_s: float, words: list[tuple[float, float]]
) -> None:
    """Each takes its own time on its way; the first of all takes none."""
    server = ServerTime(3, 60.0)
    assert server.begin_s(0, write_word(50.0, 1.0), 50.0 + ahead_s) == pytest.approx(51.0 + ahead_s)
    for number, (way_s, wait_s) in enumerate(words):
        sent_s = 50.0 + number
        now_s = sent_s + way_s + ahead_s
        begin_s = server.begin_s(1 + number, write_word(sent_s, wait_s), now_s)
        due_s = max(now_s, sent_s + wait_s + ahead_s)
        assert begin_s == pytest.approx(due_s, abs=1e-4 * (number + 1.1))


def test_slots_after_one_that_has_begun_are_put_off_within_the_step() -> None:
    server = ServerTime(3, 60.0)
    server.begin_s(0, write_word(0.0, 0.0), 0.0)
    assert server.begin_s(1, write_word(1.0, 0.1), 1.3) == pytest.approx(1.3, abs=1e-3)
    assert server.begin_s(1, write_word(1.0, 0.5), 1.3) == pytest.approx(1.7, abs=1e-3)
    assert server.begin_s(2, write_word(2.0, 0.5), 2.0) == pytest.approx(2.5, abs=1e-3)


@pytest.mark.parametrize("wait_s", [-1e-9, 60.1, math.inf, -math.inf, math.nan])
def test_a_wait_that_makes_no_sense_is_refused(wait_s: float) -> None:
    with pytest.raises(PayloadError, match="rank 3 gives a slot"):
        ServerTime(3, 60.0).begin_s(0, write_word(0.0, wait_s), 0.0)
    with pytest.raises(PayloadError, match="rank 3 gives a slot"):
        ServerTime(3, 60.0).begin_s(0, write_word(wait_s - wait_s + math.nan, 0.0), 0.0)


def values(workers: int, step: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(step)
    return [{name: torch.randn(shape) for name, shape in KEYS.items()} for _ in range(workers)]


@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("compressor", ["none", "int8"])
def test_slots_change_no_bit_and_hardly_any_time(compressor: str, *, colocated: bool) -> None:
    results, times_s = [], []
    for schedule in ({}, {"server_bits_per_s": PORT_BITS_PER_S}):
        config = {"compressor": {"name": compressor}, "schedule": schedule}
        loopback = Loopback(5, latency_s=1e-4, bandwidth_bytes_per_s=RATE_BYTES_PER_S)
        servers = None if colocated else 1
        world = ServerWorld(
            5, KEYS, config, servers=servers, colocated=colocated, loopback=loopback
        )
        results.append([world.step(values(len(world.workers), step)) for step in range(3)])
        times_s.append(loopback.clock.now_s)
        world.close()
    for plain, slotted in zip(*results, strict=True):
        for mine, other in zip(plain, slotted, strict=True):
            assert all(torch.equal(mine[name], other[name]) for name in KEYS)
    assert times_s[1] <= 1.02 * times_s[0]


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


def test_in_slots_hardly_anything_waits_before_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting is what the port gets earlier than it can take."""
    peaks = []
    for schedule in ({}, {"server_bits_per_s": PORT_BITS_PER_S}):
        loopback = Loopback(5, bandwidth_bytes_per_s=RATE_BYTES_PER_S)
        sent: list[tuple[float, int]] = []
        monkeypatch.setattr(loopback, "carry", partial(noting, loopback.carry, loopback, sent))
        world = ServerWorld(
            5, KEYS, {"schedule": schedule}, servers=1, colocated=False, loopback=loopback
        )
        world.step(values(4, 0))
        peaks.append(backlog(sorted(sent)))
        world.close()
    assert peaks[1] <= peaks[0] / 3


def backlog(sent: list[tuple[float, int]]) -> float:
    """The most bytes that have left their senders and that a port has not taken."""
    peak, waiting, before_s = 0.0, 0.0, 0.0
    for time_s, size in sent:
        waiting = max(0.0, waiting - (time_s - before_s) * RATE_BYTES_PER_S) + size
        peak, before_s = max(peak, waiting), time_s
    return peak
