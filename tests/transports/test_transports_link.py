"""Link: messages striped over several connections arrive whole, and all of them end together."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from _tcp_ends import (
    CHUNK_BYTES,
    EPOCH,
    PEER,
    Bench,
    Side,
    content,
    receive,
    reset,
    stream,
    tcp_pair,
)

from compressa.errors import PayloadError, PeerLost
from compressa.pacing import Pacer
from compressa.transports.base import Key
from compressa.transports.checks import Keys
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, read_frame
from compressa.transports.reactor import Reactor

KEY = Key(0, 0, 0)
FRAME_BYTES = CHUNK_BYTES + FRAME_HEADER_BYTES


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(connections: int = 3, **how: Any) -> Bench:
        made.append(Bench(connections=connections, **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def frames(key: Key, data: torch.Tensor) -> list[bytes]:
    wire = stream(key, data)
    return [wire[start : start + FRAME_BYTES] for start in range(0, len(wire), FRAME_BYTES)]


def chunks(wire: bytes) -> list[tuple[Frame, bytes]]:
    """Read whole frames."""
    found, priority = [], 0
    while priority < len(wire):
        header = np.frombuffer(wire, np.uint8, FRAME_HEADER_BYTES, priority)
        frame = read_frame(header.data, EPOCH, CHUNK_BYTES, "here")
        priority += FRAME_HEADER_BYTES + frame.data_bytes
        found.append((frame, wire[priority - frame.data_bytes : priority]))
    assert priority == len(wire)
    return found


# What is sent


@pytest.mark.parametrize(
    ("connections", "buffer_bytes", "secret"),
    [(1, None, None), (1, None, b"secret"), (1, 4096, b"secret"), (3, 4096, None)],
)
def test_messages_both_ways_arrive_in_their_own_memory(
    connections: int, buffer_bytes: int | None, secret: bytes | None
) -> None:
    """The kernel's least buffers take few frames whole, so that all connections take part."""
    reactor, checks = Reactor(), Keys(PEER, secret)  # of one who speaks to itself
    pairs = [tcp_pair(buffer_bytes) for _ in range(connections)]
    ends = [Side(reactor, *links, keys=checks) for links in zip(*pairs, strict=True)]
    keys = [Key(2**32 + n % 3, n, n % 7) for n in range(60)]  # steps wrap on the wire
    lengths = [1 + (n * 7919) % 60_000 for n in range(60)]
    buffers = [torch.zeros(length, dtype=torch.uint8) for length in lengths]
    for number, key in enumerate(keys):
        if number % 3:  # the others are asked for when some of their frames have come
            ends[number % 2].expect(key, buffers[number], exact=True)
        ends[(number + 1) % 2].send(key, content(key, lengths[number]), priority=number % 5)
    for number in range(0, 60, 3):
        reactor.run_once(0.001)
        ends[number % 2].expect(keys[number], buffers[number], exact=True)
    end_s = time.monotonic() + 20.0
    while sum(len(end.arrived) + len(end.sent) for end in ends) < 120 and time.monotonic() < end_s:
        reactor.run_once(0.1)
    for key, length, buffer in zip(keys, lengths, buffers, strict=True):
        assert torch.equal(buffer, content(key, length))
    total = 0
    for end in ends:
        assert end.failures == []
        assert sorted(end.sent) == sorted(set(end.sent))
        assert end.link.messages == len(end.sent) == 30
        assert all(connection.sent_bytes for connection in end.link.connections)
        total += end.link.sent_bytes
        end.link.close()
    count = sum(-(-length // CHUNK_BYTES) for length in lengths)
    assert total == sum(lengths) + count * FRAME_HEADER_BYTES
    reactor.close()


def test_a_message_is_sent_when_the_slowest_of_its_frames_is(benches: Callable[..., Bench]) -> None:
    """A connection that nobody reads from takes no more, and the others all the rest."""
    bench = benches(connections=2, buffer_bytes=4096, chunk_bytes=CHUNK_BYTES)
    data = content(KEY, 1 << 20)
    bench.near.send(KEY, data)
    stuck = bench.near.link.connections[0].sent_bytes
    assert 0 < stuck < 1 << 18
    whole = -(-stuck // FRAME_BYTES) * FRAME_BYTES
    rest = (1 << 20) // CHUNK_BYTES * FRAME_BYTES - whole
    assert len(receive(bench, rest, 1)) == rest
    bench.settle()
    assert bench.near.link.connections[0].sent_bytes < whole
    assert not bench.near.sent
    receive(bench, whole, 0)
    bench.until(lambda: bench.near.sent)
    assert bench.near.sent == [KEY]


def test_an_urgent_message_takes_the_first_connection_that_has_room(
    benches: Callable[..., Bench],
) -> None:
    bench, urgent = benches(buffer_bytes=4096), Key(0, 1, 0)
    bench.near.send(KEY, content(KEY, 4 << 20), priority=9)
    bench.settle()
    bench.near.send(urgent, content(urgent, 100), priority=0)
    held = bench.near.link.connections[1].sent_bytes
    wire = receive(bench, held + 2 * FRAME_BYTES, 1)
    begin = wire.index(stream(urgent, content(urgent, 100)))
    assert begin <= held + FRAME_BYTES


def test_what_is_gathered_leaves_in_fewer_calls_the_most_urgent_first(
    benches: Callable[..., Bench],
) -> None:
    bench = benches(connections=1)
    keys = [Key(0, unit, 0) for unit in range(3)]
    priorities = [2, 0, 1]
    bench.near.link.gather()
    for key, priority in zip(keys, priorities, strict=True):
        bench.near.send(key, content(key, 100), priority)
    bench.settle()
    assert not bench.near.sent
    calls, sendmsg = [], socket.socket.sendmsg

    def counted(near: socket.socket, buffers: Any) -> int:
        calls.append(buffers)
        return sendmsg(near, buffers)

    with mock.patch.object(socket.socket, "sendmsg", counted):
        bench.near.link.release()
    assert len(calls) < len(keys)
    found = chunks(receive(bench, 3 * (100 + FRAME_HEADER_BYTES)))
    assert [frame.key for frame, _ in found] == [keys[1], keys[2], keys[0]]
    bench.near.send(Key(0, 9, 0), content(Key(0, 9, 0), 100))
    assert len(bench.near.sent) == 4


@pytest.mark.parametrize("connections", [1, 3])
def test_a_goodbye_on_every_connection_comes_after_all_that_is_queued(
    connections: int, benches: Callable[..., Bench]
) -> None:
    bench, size = benches(connections, buffer_bytes=4096), 300_000
    data = content(KEY, size)
    bench.near.send(KEY, data)
    bench.near.link.finish()
    got = bytearray(size)
    seen: Counter[int] = Counter()
    for number in range(connections):
        for frame, part in chunks(receive(bench, 1 << 30, number)):
            got[frame.offset_bytes : frame.offset_bytes + frame.data_bytes] = part
            seen[frame.offset_bytes] += 1
    assert bytes(got) == data.numpy().tobytes()
    assert set(seen.values()) == {1}
    assert bench.near.sent == [KEY]
    assert bench.near.link.open
    for far in bench.fars:
        far.close()
    bench.until(lambda: not bench.near.link.open)
    assert bench.near.departures == [PEER]
    assert not bench.near.failures


@pytest.mark.parametrize("connections", [1, 3])
def test_a_drop_ends_every_stream_between_two_frames(
    connections: int, benches: Callable[..., Bench]
) -> None:
    bench = benches(connections, buffer_bytes=4096)
    data = content(KEY, 3 << 20)
    expected = data.numpy().tobytes()
    bench.near.send(KEY, data)
    bench.settle()
    bench.near.link.finish(drop=True)
    data.zero_()  # its owner has it back
    for number in range(connections):
        came = chunks(receive(bench, 1 << 30, number))
        assert came
        for frame, part in came:
            assert part == expected[frame.offset_bytes : frame.offset_bytes + frame.data_bytes]
    assert not bench.near.sent


@pytest.mark.parametrize("connections", [1, 3])
def test_the_pacer_holds_all_connections_together(
    connections: int, benches: Callable[..., Bench]
) -> None:
    """One frame has its turn reserved at a time, so that an urgent one comes right behind it."""
    rate_bits_per_s = 8e6
    bench, urgent = benches(connections, pacer=Pacer(rate_bits_per_s)), Key(0, 1, 0)
    started_s = time.monotonic()
    bench.near.send(KEY, content(KEY, 10 * CHUNK_BYTES), priority=5)
    bench.near.send(urgent, content(urgent, 50), priority=0)
    assert bench.near.link.sent_bytes == 0
    bench.until(lambda: len(bench.near.sent) == 2)
    wire_bytes = 10 * FRAME_BYTES + 50 + FRAME_HEADER_BYTES
    assert time.monotonic() - started_s >= 0.95 * wire_bytes * 8 / rate_bits_per_s
    bench.near.link.finish()
    order = [frame.key for frame, _ in chunks(receive(bench, 1 << 30))]
    assert order.index(urgent) == 1
    assert bench.near.link.sent_bytes == wire_bytes


def test_a_goodbye_waits_for_the_paced_frame(benches: Callable[..., Bench]) -> None:
    bench = benches(pacer=Pacer(1e6))
    bench.near.send(KEY, content(KEY, CHUNK_BYTES))
    bench.near.link.finish()
    assert receive(bench, 1 << 30) == stream(KEY, content(KEY, CHUNK_BYTES))
    assert receive(bench, 1, 1) == b""


@pytest.mark.parametrize("connections", [1, 3])
def test_a_paced_frame_that_is_dropped_never_leaves(
    connections: int, benches: Callable[..., Bench]
) -> None:
    bench = benches(connections, pacer=Pacer(8e3))  # a frame takes 4 s
    bench.near.send(KEY, content(KEY, CHUNK_BYTES))
    bench.near.link.finish(drop=True)
    started_s = time.monotonic()
    assert [receive(bench, 1, number) for number in range(connections)] == [b""] * connections
    assert time.monotonic() - started_s < 3.0


# What comes


def test_frames_of_a_message_come_over_any_connection_in_any_order(
    benches: Callable[..., Bench],
) -> None:
    bench, size = benches(), 7 * CHUNK_BYTES + 13
    buffer = torch.zeros(size, dtype=torch.uint8)
    bench.near.expect(KEY, buffer, exact=True)
    parts = frames(KEY, content(KEY, size))
    bench.fars[2].sendall(parts[7][:40])  # the short one begins first and ends last
    bench.settle()
    for number in (5, 2, 6, 0, 3, 1, 4):
        bench.fars[number % 2].sendall(parts[number])
        bench.settle()
    assert not bench.near.arrived
    bench.fars[2].sendall(parts[7][40:])
    bench.until(lambda: bench.near.arrived)
    assert torch.equal(buffer, content(KEY, size))


def test_a_chunk_that_comes_twice_is_refused_while_the_first_is_under_way(
    benches: Callable[..., Bench],
) -> None:
    """Nothing of it counts, or else a message would be whole with a hole in it."""
    bench = benches()
    bench.near.expect(KEY, torch.zeros(2 * CHUNK_BYTES, dtype=torch.uint8), exact=True)
    first = frames(KEY, content(KEY, 2 * CHUNK_BYTES))[0]
    bench.fars[0].sendall(first[:100])
    bench.settle()
    bench.fars[1].sendall(first)
    bench.until(lambda: bench.near.failures)
    assert isinstance(bench.near.failures[0], PayloadError)
    assert "sends byte 0 of a message twice" in str(bench.near.failures[0])
    assert not bench.near.arrived


def test_after_nonsense_on_one_connection_nothing_is_taken_from_the_others(
    benches: Callable[..., Bench],
) -> None:
    bench = benches()
    buffer = torch.zeros(CHUNK_BYTES, dtype=torch.uint8)
    bench.near.expect(KEY, buffer, exact=True)
    bench.fars[2].sendall(b"\xff" * 64)
    bench.until(lambda: bench.near.failures)
    bench.fars[1].sendall(stream(KEY, content(KEY, CHUNK_BYTES)) + b"\xff" * 64)
    for far in bench.fars:
        far.shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.departures)
    assert not buffer.any()
    assert len(bench.near.failures) == 1


# How it ends


def test_a_peer_has_left_when_all_its_streams_have_ended(benches: Callable[..., Bench]) -> None:
    bench = benches()
    bench.near.expect(KEY, torch.zeros(100, dtype=torch.uint8))
    for number in (2, 0):
        bench.fars[number].shutdown(socket.SHUT_WR)
        bench.settle()
    assert not bench.near.departures
    bench.fars[1].sendall(stream(KEY, content(KEY, 100)))
    bench.fars[1].shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.departures)
    assert KEY in bench.near.arrived
    assert bench.near.departures == [PEER]
    assert not bench.near.failures


@pytest.mark.parametrize("how", ["reset", "in the middle of a frame"])
def test_a_peer_is_lost_when_one_connection_breaks(how: str, benches: Callable[..., Bench]) -> None:
    """The others are closed with it, whether the peer has ended them or not."""
    bench = benches()
    bench.fars[0].shutdown(socket.SHUT_WR)
    bench.settle()
    if how == "reset":
        reset(bench.fars[1])
    else:
        bench.fars[1].sendall(stream(KEY, content(KEY, 100))[:50])
        bench.fars[1].shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.failures)
    assert isinstance(bench.near.failures[0], PeerLost)
    assert how in str(bench.near.failures[0])
    assert not bench.near.link.open
    bench.near.send(KEY, content(KEY, 100))  # goes nowhere, harmlessly
    bench.settle()
    assert bench.fars[2].recv(1) == b""
    assert len(bench.near.failures) == 1
    assert not bench.near.departures
    assert not bench.near.sent
