"""Exchanges by the compiled loop: named messages of any length, which match whoever comes first."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from _lowered import CHUNK_BYTES, EPOCH, KEY, End, ends, frame, side_by_side
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.collectives.base import Exchange
from compressa.errors import PayloadError, PeerLost
from compressa.testing.memory import Guarded
from compressa.transports.base import Key, Received
from compressa.transports.checks import Keys
from compressa.transports.frames import FRAME_HEADER_BYTES, read_frame
from compressa.transports.lowered import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")

LONG = 3 * CHUNK_BYTES + 17


def random(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (length,), dtype=torch.uint8)


def room(length: int) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.uint8)


def as_bytes(buffer: torch.Tensor) -> bytes:
    return bytes(buffer.numpy())


class Receiver:
    """A loop whose only peer is a plain socket here."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.end = End(0, {1: [near]})
        self.far.settimeout(5.0)

    def look(self) -> None:
        """Take what has come for something that nobody sends."""
        self.end.exchange(Key(1000, 0, 0), Exchange({}, {1: room(1)}))
        self.end.loop.wait(-1, 0.0)

    def close(self) -> None:
        self.end.close()
        self.far.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(2, 4),
    lengths=st.lists(st.sampled_from([0, 1, 7, 8, 400, CHUNK_BYTES, LONG]), min_size=1, max_size=5),
    exact=st.booleans(),
    late=st.sets(st.integers(0, 3)),
    stripes=st.sampled_from([1, 3]),
)
def test_everyone_gets_what_everyone_sent(
    size: int, lengths: list[int], exact: bool, late: set[int], stripes: int
) -> None:
    with ends(size, stripes) as ranks:
        sent = [[random(length) for length in lengths] for _ in range(size)]
        got: list[list[Received]] = [[] for _ in range(size)]

        def run(rank: int) -> None:
            peers = [peer for peer in range(size) if peer != rank]
            numbers = range(len(lengths))
            for i in reversed(numbers) if rank in late else numbers:
                capacity = lengths[i] if exact or not lengths[i] else lengths[i] + 9
                exchange = Exchange(
                    dict.fromkeys(peers, sent[rank][i]),
                    {peer: room(capacity) for peer in peers},
                    exact,
                )
                got[rank].append(ranks[rank].exchange(Key(1, i, 2), exchange, i))
            ranks[rank].until(len(lengths))
            if rank in late:
                got[rank].reverse()

        side_by_side([partial(run, rank) for rank in range(size)])
        assert not any(end.failures for end in ranks)
        for rank in range(size):
            for i in range(len(lengths)):
                assert sorted(got[rank][i]) == [peer for peer in range(size) if peer != rank]
                for peer, received in got[rank][i].items():
                    assert as_bytes(received) == as_bytes(sent[peer][i])


@pytest.mark.parametrize("secret", [None, b"known to the ranks alone"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_frame_that_found_no_room_is_overtaken(chunks: int, secret: bytes | None) -> None:
    """By what is more urgent; its message comes behind that, and whole."""
    near, far = socket.socketpair()
    end, check = End(0, {1: [near]}, secret=secret), Keys(1, secret).coming_from(0)
    far.settimeout(5.0)
    junk = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            junk += near.send(bytes(1 << 10), socket.MSG_DONTWAIT)
    long, urgent, less = random(chunks * CHUNK_BYTES), random(8), random(8)
    for unit, (data, priority) in enumerate([(long, 5), (less, 6), (urgent, 4)]):
        end.exchange(Key(2, unit, 0), Exchange({1: data}, {}), priority)
        end.loop.wait(-1, 0.0)  # which cuts a frame
    far.recv(junk, socket.MSG_WAITALL)
    end.until(3)
    for unit, data in ((2, urgent), *[(0, chunk) for chunk in long.split(CHUNK_BYTES)], (1, less)):
        front = far.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL)
        one = read_frame(memoryview(front), EPOCH, CHUNK_BYTES, "here")
        body = far.recv(one.data_bytes, socket.MSG_WAITALL)
        one.verify(memoryview(body), "here", check)
        assert (one.key.unit, body) == (unit, as_bytes(data))
    end.close()
    far.close()


@pytest.mark.parametrize("cut", [1, FRAME_HEADER_BYTES, 60, 4000, CHUNK_BYTES + 70, 9000, 12000])
def test_what_begins_before_it_is_asked_for_goes_on_in_its_receivers_memory(
    receiver: Receiver, cut: int
) -> None:
    data = as_bytes(random(LONG))
    frames = bytearray()
    for offset in range(0, LONG, CHUNK_BYTES):
        part = data[offset : offset + CHUNK_BYTES]
        frames += frame(part, message_bytes=LONG, offset_bytes=offset)
    receiver.far.sendall(frames[:cut])
    receiver.look()
    guarded = Guarded(LONG + 5, torch.uint8, 0)
    received = receiver.end.exchange(KEY, Exchange({}, {1: guarded.tensor}, exact=False))
    receiver.far.sendall(frames[cut:])
    receiver.end.until(1)
    assert as_bytes(received[1]) == data
    assert received[1].data_ptr() == guarded.tensor.data_ptr()
    assert guarded.intact


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("exact", "what"), [(True, "where 399 are"), (False, "where at most 399 are")]
)
def test_what_is_too_long_is_refused_and_nothing_is_written(
    receiver: Receiver, ahead: bool, exact: bool, what: str
) -> None:
    guarded = Guarded(399, torch.uint8, 0)
    guarded.tensor.fill_(7)
    if ahead:
        receiver.far.sendall(frame(bytes(400)))
        receiver.look()
    receiver.end.exchange(KEY, Exchange({}, {1: guarded.tensor}, exact))
    if not ahead:
        receiver.far.sendall(frame(bytes(400)))
    receiver.end.until(1)
    (failure,) = receiver.end.failures
    assert isinstance(failure, PayloadError)
    assert f"rank 1 sends 400 bytes for unit 5, stage 0 of step 2, {what} due" in str(failure)
    assert (guarded.tensor == 7).all()
    assert guarded.intact


def test_a_message_does_not_change_its_length_on_its_way(receiver: Receiver) -> None:
    receiver.end.exchange(KEY, Exchange({}, {1: room(LONG)}, exact=False))
    first = bytes(CHUNK_BYTES)
    receiver.far.sendall(frame(first, message_bytes=2 * CHUNK_BYTES))
    receiver.far.sendall(frame(first, message_bytes=2 * CHUNK_BYTES - 1, offset_bytes=CHUNK_BYTES))
    receiver.end.until(1)
    (failure,) = receiver.end.failures
    assert isinstance(failure, PayloadError)


def test_the_oldest_step_goes_first_then_the_most_urgent(receiver: Receiver) -> None:
    end = receiver.end
    end.loop.hold(True)
    order = [(3, 0), (2, 5), (2, 1), (3, 1)]
    for number, (step, priority) in enumerate(order):
        end.exchange(Key(step, number, 0), Exchange({1: random(100)}, {}), priority)
    end.loop.hold(False)
    end.until(len(order))
    got = receiver.far.recv(1 << 16)
    names = [got[i * (FRAME_HEADER_BYTES + 100) + 12] for i in range(len(order))]
    assert names == [2, 1, 0, 3]  # units, by where frames bear them


def test_what_is_held_leaves_in_one_piece(receiver: Receiver) -> None:
    end = receiver.end
    end.loop.hold(True)
    for number in range(3):
        end.exchange(Key(1, number, 0), Exchange({1: random(100)}, {}))
    receiver.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        receiver.far.recv(1)
    end.loop.hold(False)
    end.until(3)
    assert len(receiver.far.recv(1 << 16)) == 3 * (FRAME_HEADER_BYTES + 100)


def test_nothing_to_exchange_is_done_at_once(receiver: Receiver) -> None:
    empty = room(0)
    assert receiver.end.exchange(KEY, Exchange({1: empty}, {1: empty})) == {1: empty}
    assert receiver.end.done == [KEY]
    assert not receiver.end.loop.busy


def test_a_peer_that_ends_its_stream_owes_what_is_waited_for(receiver: Receiver) -> None:
    receiver.end.exchange(KEY, Exchange({}, {1: room(8)}))
    assert receiver.end.loop.missing(KEY) == [1]
    receiver.far.shutdown(socket.SHUT_WR)
    receiver.end.until(1)
    (failure,) = receiver.end.failures
    assert isinstance(failure, PeerLost)
    assert failure.rank == 1


def test_who_finishes_has_its_peers_find_what_it_sent_and_then_its_end() -> None:
    with ends(2) as (one, other):
        data = random(LONG)
        one.exchange(KEY, Exchange({1: data}, {}))
        one.until(1)
        one.loop.finish()
        received = other.exchange(KEY, Exchange({}, {0: room(LONG)}))
        other.until(1)
        assert as_bytes(received[0]) == as_bytes(data)
        other.exchange(KEY._replace(stage=1), Exchange({}, {0: room(1)}))
        other.until(2)
        (failure,) = other.failures
        assert isinstance(failure, PeerLost)


def test_it_is_told_when_messages_left_and_came(receiver: Receiver) -> None:
    end, told = receiver.end, []
    end.loop.observe(lambda key, first_s, last_s: told.append(("sent", key, first_s, last_s)))
    end.loop.hear(lambda key, first_s, last_s: told.append(("came", key, first_s, last_s)))
    began_s, key = time.perf_counter(), KEY._replace(part=3)
    end.exchange(key, Exchange({1: random(LONG)}, {1: room(LONG)}))
    end.loop.wait(-1, 0.0)
    time.sleep(0.05)
    answer_s, chunk = time.perf_counter(), bytes(CHUNK_BYTES)
    receiver.far.sendall(frame(chunk, key, message_bytes=LONG))
    end.loop.wait(-1, 0.01)
    time.sleep(0.05)
    for offset in range(CHUNK_BYTES, LONG, CHUNK_BYTES):
        part = bytes(min(CHUNK_BYTES, LONG - offset))
        receiver.far.sendall(frame(part, key, message_bytes=LONG, offset_bytes=offset))
    end.until(1)
    (sent, came) = sorted(told, key=lambda each: each[0] == "came")
    assert sent[:2] == ("sent", key)
    assert came[:2] == ("came", key)
    assert began_s <= sent[2] <= sent[3] <= answer_s <= came[2] <= time.perf_counter() - 0.05
    assert came[3] - came[2] >= 0.05

    end.loop.observe(None)
    end.loop.hear(None)
    told.clear()
    end.exchange(Key(9, 0, 0), Exchange({1: random(8)}, {}))
    end.until(2)
    assert told == []


def test_what_comes_while_nobody_reads_does_not_hold_its_sender_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    end = End(0, {1: [near]}, early_bytes=1 << 20)
    far.settimeout(5.0)
    try:
        far.sendall(bytes(1 << 20))  # a window that nobody asked for is 64 KiB
    finally:
        end.close()
        far.close()
