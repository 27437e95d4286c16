"""Over several connections chunks come in any order, each of them once; else nothing is taken."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from _lowered import CHUNK_BYTES, EPOCH, KEY, End, ends, side_by_side
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.collectives.base import Exchange
from compressa.errors import PayloadError, PeerLost
from compressa.pacing import Pacer
from compressa.testing.memory import Guarded
from compressa.transports.base import Key
from compressa.transports.checks import Keys
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame
from compressa.transports.lowered import AVAILABLE
from compressa.transports.lowered import _words as w
from compressa.transports.lowered.bucket import SharedEmptyAt
from compressa.transports.lowered.digests import openssl

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")

STRIPES = 3
LONG = 70 * CHUNK_BYTES + 5  # more chunks than a word has bits
DATA = bytes(range(256)) * (LONG // 256) + bytes(LONG % 256)
CHUNKS = -(-LONG // CHUNK_BYTES)


class Receiver:
    """A loop whose only peer are plain sockets here."""

    def __init__(self, **how: Any) -> None:
        pairs = [socket.socketpair() for _ in range(STRIPES)]
        self.far = [far for _, far in pairs]
        for far in self.far:
            far.settimeout(5.0)
        self.end = End(0, {1: [near for near, _ in pairs]}, **how)
        self.guarded = Guarded(LONG, torch.uint8, 0)

    def expect(self, key: Key = KEY) -> None:
        self.end.exchange(key, Exchange({}, {1: self.guarded.tensor}))

    def look(self) -> None:
        """Take what has come for something that nobody sends."""
        if not self.end.loop.busy:
            self.end.exchange(Key(1000, 0, 0), Exchange({}, {1: torch.zeros(1, dtype=torch.uint8)}))
        for _ in range(2 * CHUNKS):
            if not self.end.failures:
                self.end.loop.wait(-1, 0.0)

    def close(self) -> None:
        self.end.close()
        for far in self.far:
            far.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    assert made.guarded.intact
    made.close()


def chunk(number: int, key: Key = KEY) -> bytes:
    return cut(number * CHUNK_BYTES, CHUNK_BYTES, key)


def cut(offset: int, length: int, key: Key = KEY) -> bytes:
    part = DATA[offset : offset + length]
    return (
        bytes(Frame(Kind.DATA, EPOCH, key, LONG, offset, len(part)).pack(memoryview(part))) + part
    )


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(range(CHUNKS)),
    ways=st.lists(st.integers(0, STRIPES - 1), min_size=CHUNKS, max_size=CHUNKS),
    early=st.integers(0, CHUNKS),
    seams=st.integers(0, 40),
)
def test_chunks_are_taken_in_any_order_over_any_connection(
    order: list[int], ways: list[int], early: int, seams: int
) -> None:
    receiver = Receiver()
    streams = [b""] * STRIPES
    for number, (which, over) in enumerate(zip(order, ways, strict=True)):
        streams[over] += chunk(which)
        if number == early:  # and of each stream the last bytes have not come
            for far, stream in zip(receiver.far, streams, strict=True):
                far.sendall(stream[: max(0, len(stream) - seams)])
            streams = [stream[max(0, len(stream) - seams) :] for stream in streams]
            receiver.look()
            receiver.expect()
    if early == CHUNKS:
        receiver.expect()
    sent = [partial(far.sendall, stream) for far, stream in zip(receiver.far, streams, strict=True)]
    side_by_side([*sent, partial(receiver.end.until, 1)])
    assert not receiver.end.failures
    assert receiver.end.done == [KEY]
    assert bytes(receiver.guarded.tensor.numpy()) == DATA
    assert receiver.guarded.intact
    receiver.close()


@pytest.mark.parametrize("asked", [True, False], ids=["awaited", "early"])
@pytest.mark.parametrize(
    "bad",
    [
        cut(2 * CHUNK_BYTES, CHUNK_BYTES),  # which has come
        cut(CHUNK_BYTES // 2, CHUNK_BYTES),
        cut(5 * CHUNK_BYTES, CHUNK_BYTES - 8),
        cut((CHUNKS - 1) * CHUNK_BYTES, 3),
    ],
    ids=["again", "between", "short", "short end"],
)
def test_what_is_no_new_chunk_is_refused(receiver: Receiver, bad: bytes, *, asked: bool) -> None:
    if asked:
        receiver.expect()
    receiver.far[0].sendall(chunk(2))
    receiver.look()
    receiver.far[1].sendall(bad)
    receiver.look()
    (failure,) = receiver.end.failures
    assert isinstance(failure, PayloadError)
    assert "which are no chunk or came before" in str(failure)
    assert not receiver.end.done


def test_what_is_owed_may_come_behind_the_end_of_another_stream(receiver: Receiver) -> None:
    receiver.expect()
    receiver.far[0].sendall(chunk(0))
    receiver.far[0].shutdown(socket.SHUT_WR)
    receiver.look()
    assert not receiver.end.failures
    rest = b"".join(map(chunk, range(1, CHUNKS)))
    side_by_side([partial(receiver.far[1].sendall, rest), partial(receiver.end.until, 1)])
    assert receiver.end.done == [KEY]


def test_a_peer_that_ends_all_streams_while_it_owes_something_is_lost(receiver: Receiver) -> None:
    receiver.expect()
    receiver.far[0].sendall(chunk(0))
    for far in receiver.far:
        far.close()
    receiver.end.until(1)
    (failure,) = receiver.end.failures
    assert isinstance(failure, PeerLost)


def test_who_ends_a_stream_and_takes_nothing_more_has_left(receiver: Receiver) -> None:
    """Its others may end later: who finds the first of them shut is told what who waits is told."""
    receiver.expect()
    receiver.far[0].sendall(chunk(0))
    receiver.far[0].shutdown(socket.SHUT_RDWR)
    data = torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    receiver.end.exchange(Key(0, 1, 0), Exchange({1: data}, {}))
    receiver.end.until(1)
    (failure,) = receiver.end.failures
    assert str(failure) == "rank 1 is lost: it has left the training"


def test_a_connection_without_room_holds_nothing_that_has_not_begun() -> None:
    receiver = Receiver(kept_bytes=1 << 13, keys=Keys(0, b"known to the ranks alone"))
    data = torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    receiver.end.exchange(KEY, Exchange({1: data}, {}))
    links, full = receiver.end.loop._links, 0
    checks = [Keys(1, b"known to the ranks alone").coming_from(0, k) for k in range(STRIPES)]
    streams, found = [b""] * STRIPES, {}
    turn = 0
    while not receiver.end.done or any(streams) or len(found) < CHUNKS:
        receiver.end.loop.wait(-1, 0.0)
        for row in links[links[:, w.FULL] == 1]:
            full += 1
            assert not row[w.OUT_ROW] or row[w.OUT_SENT] > 0
        turn, number = turn + 1, turn % STRIPES  # the others have no room meanwhile
        receiver.far[number].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            streams[number] += receiver.far[number].recv(1 << 13)
        while len(streams[number]) >= FRAME_HEADER_BYTES:
            frame = read_frame(memoryview(streams[number]), EPOCH, CHUNK_BYTES, "here")
            end = FRAME_HEADER_BYTES + frame.data_bytes
            if len(streams[number]) < end:
                break
            body = memoryview(streams[number])[FRAME_HEADER_BYTES:end]
            frame.verify(body, "here", checks[number])  # none is counted that was given back
            found[frame.offset_bytes] = bytes(body)
            streams[number] = streams[number][end:]
    assert full
    assert b"".join(found[offset] for offset in sorted(found)) == DATA
    receiver.close()


def test_a_message_leaves_over_all_connections_and_each_chunk_once() -> None:
    receiver = Receiver(kept_bytes=1 << 13)
    data = torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    receiver.end.exchange(KEY, Exchange({1: data}, {}))
    streams = [b""] * STRIPES
    while not receiver.end.done:
        receiver.end.loop.wait(-1, 0.001)
        for number, far in enumerate(receiver.far):
            far.setblocking(False)
            try:
                streams[number] += far.recv(1 << 14)
            except BlockingIOError:
                continue
    for number, far in enumerate(receiver.far):
        far.setblocking(False)
        try:
            streams[number] += far.recv(1 << 20)
        except BlockingIOError:
            continue
    found: dict[int, bytes] = {}
    for stream in streams:
        assert stream  # no connection was left idle
        read = memoryview(stream)
        while read:
            frame = read_frame(read, EPOCH, CHUNK_BYTES, "here")
            body = read[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + frame.data_bytes]
            frame.verify(body, "here")
            assert frame.offset_bytes not in found
            found[frame.offset_bytes] = bytes(body)
            read = read[FRAME_HEADER_BYTES + frame.data_bytes :]
    assert b"".join(found[offset] for offset in sorted(found)) == DATA
    assert receiver.end.loop.messages == 1
    receiver.close()


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "round_robin"])
def test_striped_sums_are_the_same_with_macs_and_at_a_pace(name: str) -> None:
    pacer = Pacer(400e6, 1 << 16, SharedEmptyAt())
    ways = [{"stripes": 1}, {"stripes": 3}, {"stripes": 3, "pacer": pacer}]
    if openssl() is not None:
        ways.append({"stripes": 3, "pacer": pacer, "secret": b"known to the ranks alone"})
    totals = []
    for how in ways:
        with ends(3, **how) as loops:
            for step in range(4):  # and again, with what came in any order forgotten
                values = [torch.arange(30_000.0) * (rank + 1 + step) for rank in range(3)]
                programs = [end.program(name, v) for end, v in zip(loops, values, strict=True)]
                begun = zip(loops, programs, values, strict=True)
                side_by_side([partial(e.sum, p, v, Key(step, 5, 0)) for e, p, v in begun])
                assert not any(end.failures for end in loops)
            totals.append(values)
    for values in totals[1:]:
        assert all(torch.equal(a, b) for a, b in zip(values, totals[0], strict=True))
