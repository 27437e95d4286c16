"""The loopback: a clock that repeats itself, ports that are fair, failures that are told."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from compressa.codecs import Int8
from compressa.collectives import BackendAllReduce, Exchange
from compressa.errors import CompressaError, PayloadError, PeerLost, StateError
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import MODEL, model_gradients
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback, VirtualClock

KEY = Key(0, 0, 0)


def buffer(length: int, value: int = 0) -> torch.Tensor:
    return torch.full((length,), value, dtype=torch.uint8)


def swap(loopback: Loopback, key: Key = KEY, length: int = 100) -> list[Any]:
    """Ranks 0 and 1 send each other `length` bytes; return what each received."""
    results: list[Any] = []
    for rank in (0, 1):
        peer = 1 - rank
        exchange = Exchange({peer: buffer(length, rank + 1)}, {peer: buffer(length)})
        loopback.transports[rank].exchange(key, exchange, 0, results.append)
    loopback.clock.run()
    return results


def test_events_run_in_order_of_time_then_of_making() -> None:
    clock = VirtualClock()
    seen: list[str] = []
    clock.at(2.0, lambda: seen.append("late"))
    for name in "abc":
        clock.at(1.0, partial(seen.append, name))
    clock.at(-5.0, lambda: seen.append("now"))
    clock.run()
    assert seen == ["now", "a", "b", "c", "late"]
    assert clock.now_s == 2.0


@pytest.mark.parametrize("step", [0, 5, 2**32 - 1, 2**32, 2**33 + 7])
def test_messages_are_matched_at_any_step(step: int) -> None:
    results = swap(Loopback(2), Key(step, 3, 1))
    assert sorted(int(received[0]) for result in results for received in result.values()) == [1, 2]


def test_one_message_takes_latency_and_bytes() -> None:
    loopback = Loopback(2, latency_s=0.5, message_s=0.25, bandwidth_bytes_per_s=1000)
    assert len(swap(loopback, length=2000 - FRAME_HEADER_BYTES)) == 2
    assert loopback.clock.now_s == pytest.approx(0.5 + 0.25 + 2.0)


def test_incast_shares_the_receivers_port() -> None:
    loopback = Loopback(4, bandwidth_bytes_per_s=1000)
    done: list[Any] = []
    size = 1000 - FRAME_HEADER_BYTES
    incoming = {peer: buffer(size) for peer in (1, 2, 3)}
    loopback.transports[0].exchange(KEY, Exchange({}, incoming), 0, done.append)
    for peer in (1, 2, 3):
        loopback.transports[peer].exchange(KEY, Exchange({0: buffer(size)}, {}), 0, done.append)
    loopback.clock.run()
    assert len(done) == 4
    assert loopback.clock.now_s == pytest.approx(3.0)


def test_a_port_serves_who_comes_first_not_who_was_asked_first() -> None:
    loopback = Loopback(3, bandwidth_bytes_per_s=1000)
    size = 1000 - FRAME_HEADER_BYTES
    times: dict[str, float] = {}

    def note(name: str) -> Any:
        return lambda result: times.setdefault(name, loopback.clock.now_s)

    # Rank 0 serves rank 1 first, then rank 2; rank 2's port is free for rank 1 meanwhile.
    loopback.transports[2].exchange(Key(0, 0, 0), Exchange({}, {1: buffer(size)}), 0, note("1"))
    loopback.transports[2].exchange(Key(0, 1, 0), Exchange({}, {0: buffer(size)}), 0, note("0"))
    loopback.transports[1].exchange(Key(0, 2, 0), Exchange({}, {0: buffer(size)}), 0, note("x"))
    loopback.transports[0].exchange(Key(0, 2, 0), Exchange({1: buffer(size)}, {}), 0, note("a"))
    loopback.transports[0].exchange(Key(0, 1, 0), Exchange({2: buffer(size)}, {}), 0, note("b"))
    loopback.transports[1].exchange(Key(0, 0, 0), Exchange({2: buffer(size)}, {}), 0, note("c"))
    loopback.clock.run()
    assert times["1"] == pytest.approx(1.0)
    assert times["0"] == pytest.approx(2.0)


def test_sent_memory_may_be_reused_at_once() -> None:
    loopback, out = Loopback(2, latency_s=1.0), buffer(10, 7)
    received: list[Any] = []
    loopback.transports[1].exchange(KEY, Exchange({}, {0: buffer(10)}), 0, received.append)
    loopback.transports[0].exchange(KEY, Exchange({1: out}, {}), 0, lambda result: None)
    out.zero_()
    loopback.clock.run()
    assert torch.equal(received[0][0], buffer(10, 7))


def test_a_message_of_the_wrong_length_fails_its_receiver() -> None:
    loopback = Loopback(2)
    failures: list[CompressaError] = []
    loopback.transports[1].failed = failures.append
    loopback.transports[1].exchange(KEY, Exchange({}, {0: buffer(10)}), 0, lambda result: None)
    loopback.transports[0].exchange(KEY, Exchange({1: buffer(11)}, {}), 0, lambda result: None)
    loopback.clock.run()
    assert isinstance(failures[0], PayloadError)


def test_losing_a_rank_is_told_to_all_others_and_silences_it() -> None:
    loopback = Loopback(3)
    told: dict[int, CompressaError] = {}
    for rank, transport in enumerate(loopback.transports):
        transport.failed = partial(told.__setitem__, rank)
    received: list[Any] = []
    loopback.transports[0].exchange(KEY, Exchange({}, {1: buffer(4)}), 0, received.append)
    assert loopback.transports[0].missing(KEY) == [1]
    loopback.transports[1].exchange(KEY, Exchange({0: buffer(4)}, {}), 0, lambda result: None)
    loopback.lose(1)
    loopback.clock.run()
    assert sorted(told) == [0, 2]
    assert all(isinstance(error, PeerLost) and error.rank == 1 for error in told.values())
    assert not received


def test_backend_sums_are_not_offered() -> None:
    transport = Loopback(2).transports[0]
    assert not transport.sums
    with pytest.raises(StateError):
        transport.all_reduce(BackendAllReduce(torch.ones(1)), lambda result: None)


def test_a_run_repeats_its_bits_and_its_times() -> None:
    runs = []
    for _ in range(2):
        loopback = Loopback(4, latency_s=1e-4, bandwidth_bytes_per_s=1e6)
        world = LoopbackWorld(4, MODEL, Int8(block=32), loopback=loopback)
        means = [world.step(model_gradients(4, step))[2] for step in range(2)]
        runs.append((world.virtual_time_s, means))
    assert runs[0][0] == runs[1][0] > 0
    for first, second in zip(runs[0][1], runs[1][1], strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)


def arrivals(loopback: Loopback, sizes: dict[tuple[int, int], int]) -> dict[tuple[int, int], float]:
    """Send messages between ranks, at once; return when each arrived."""
    times: dict[tuple[int, int], float] = {}
    for (sender, receiver), size in sizes.items():
        length = size - FRAME_HEADER_BYTES

        def note(answer: Any, pair: tuple[int, int] = (sender, receiver)) -> None:
            times[pair] = loopback.clock.now_s

        there, here = loopback.transports[receiver], loopback.transports[sender]
        key = Key(0, 10 * sender + receiver, 0)
        there.exchange(key, Exchange({}, {sender: buffer(length)}), 0, note)
        here.exchange(key, Exchange({receiver: buffer(length)}, {}), 0, lambda answer: None)
    loopback.clock.run()
    return times


def test_ports_may_differ() -> None:
    """A slow port on either side settles how long a message takes, and holds nobody else up."""
    rates = [1e3, 1e6, 1e4]
    loopback = Loopback(3, latency_s=0.5, bandwidth_bytes_per_s=lambda rank, _: rates[rank])
    times = arrivals(loopback, {(0, 1): 1000, (1, 2): 1000, (2, 0): 1000})
    assert times == pytest.approx({(0, 1): 1.5, (1, 2): 0.6, (2, 0): 1.5})


def test_a_bandwidth_may_change_in_time() -> None:
    loopback = Loopback(2, bandwidth_bytes_per_s=lambda _, time_s: 1000.0 if time_s < 1 else 100.0)
    assert arrivals(loopback, {(0, 1): 1000}) == pytest.approx({(0, 1): 1.0})
    assert arrivals(loopback, {(1, 0): 1000}) == pytest.approx({(1, 0): 11.0})


def test_delayed_messages_are_overtaken() -> None:
    def delay(sender: int, receiver: int, time_s: float) -> float:
        return 2.0 if sender == 0 else 0.0

    loopback = Loopback(3, latency_s=0.5, bandwidth_bytes_per_s=1000, delay=delay)
    times = arrivals(loopback, {(0, 2): 1000, (1, 2): 1000})
    assert times == pytest.approx({(0, 2): 3.5, (1, 2): 1.5})


@pytest.mark.parametrize("silence_s", [0.0, 0.25])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_survivors_know_a_loss_at_its_time(share: float, silence_s: float) -> None:
    """At whichever part of a step it happens."""
    slow: dict[str, Any] = {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1e5}
    undisturbed = LoopbackWorld(4, MODEL, Int8(), loopback=Loopback(4, **slow))
    undisturbed.step(model_gradients(4, 0))
    at_s = share * undisturbed.virtual_time_s

    loopback = Loopback(4, **slow)
    world = LoopbackWorld(4, MODEL, Int8(), loopback=loopback)
    known: dict[int, float] = {}
    for transport in loopback.transports:
        tell = transport.failed

        def failed(error: CompressaError, rank: int = transport.rank, tell: Any = tell) -> None:
            known.setdefault(rank, loopback.clock.now_s)
            tell(error)

        transport.failed = failed
    loopback.lose(2, at_s=at_s, silence_s=silence_s)
    with pytest.raises(PeerLost, match="rank 2 is lost"):
        world.step(model_gradients(4, 0))
    assert known == pytest.approx(dict.fromkeys((0, 1, 3), at_s + silence_s))
    for rank in (0, 1, 3):
        error = world.errors()[rank]
        if error is None:  # all of it had come before the silence was over
            assert silence_s
            continue
        assert isinstance(error, PeerLost)
        assert error.rank == 2
