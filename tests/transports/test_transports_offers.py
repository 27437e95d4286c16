"""Connection: however much of the frames that it is offered the kernel takes, the stream is right.

Over a socket that takes as many bytes of each call as the test says.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import cast

import numpy as np
import torch
from _tcp_ends import CHUNK_BYTES, EPOCH, Side, content
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.pacing import Pacer
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, read_frame
from compressa.transports.reactor import WRITE, Reactor

FRAME_BYTES = CHUNK_BYTES + FRAME_HEADER_BYTES


class Kernel:
    """A socket that takes what it is told to, and is full where that is less than it is offered."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.room_bytes = 0
        self.wire = b""
        self.calls = 0

    def sendmsg(self, parts: list[memoryview]) -> int:
        self.calls += 1
        taken = b"".join(parts)[: self.room_bytes]
        self.room_bytes -= len(taken)
        if not taken:
            raise BlockingIOError
        self.wire += taken
        return len(taken)

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *option: int) -> None:
        pass

    def shutdown(self, how: int) -> None:
        pass

    def fileno(self) -> int:
        return -1


class CountingPacer:
    """Lets every frame go at once, and counts what had its turn reserved."""

    def __init__(self) -> None:
        self.rate_bits_per_s = 1e9
        self.reserved_bytes = 0

    def reserve(self, size: int) -> None:
        self.reserved_bytes += size


class Sender:
    """A link over such sockets, without a reactor that serves them."""

    def __init__(self, connections: int = 1, **how: object) -> None:
        self.kernels = [Kernel() for _ in range(connections)]
        links = cast("list[socket.socket]", self.kernels)
        self._reactor = Reactor()
        self.side = Side(self._reactor, *links, **how)
        self._reactor.close()

    def give_room(self, room_bytes: int, number: int = 0) -> None:
        """Have one kernel take so much more, and wake its connection."""
        self.kernels[number].room_bytes = room_bytes
        self.side.link.connections[number]._ready(WRITE)
        self.kernels[number].room_bytes = 0

    def drain(self) -> None:
        for number in range(len(self.kernels)):
            self.give_room(1 << 30, number)


def begins(wire: bytes) -> list[tuple[int, Frame]]:
    """Where each frame of a stream of whole frames begins."""
    found, begin = [], 0
    while begin < len(wire):
        header = np.frombuffer(wire, np.uint8, FRAME_HEADER_BYTES, begin)
        frame = read_frame(header.data, EPOCH, CHUNK_BYTES, "here")
        found.append((begin, frame))
        begin += FRAME_HEADER_BYTES + frame.data_bytes
    assert begin == len(wire)
    return found


# A message of so many bytes and such urgency, or room for so many bytes in one of the kernels.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 8 * CHUNK_BYTES), st.integers(0, 4)),
        st.tuples(st.just("room"), st.integers(0, 12 * FRAME_BYTES), st.integers(0, 1)),
        st.tuples(st.just("room"), st.integers(1, 2 * FRAME_HEADER_BYTES), st.integers(0, 1)),
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(events=EVENTS, connections=st.integers(1, 2), paced=st.booleans())
def test_every_message_leaves_whole_whatever_the_kernel_takes(
    events: list[tuple[str, int, int]], connections: int, paced: bool
) -> None:
    pacer = CountingPacer()
    sender = Sender(connections, pacer=pacer if paced else Pacer(None))
    keys: dict[Key, torch.Tensor] = {}
    for what, size, which in events:
        if what == "send":
            key = Key(0, len(keys), 0)
            keys[key] = content(key, size)
            sender.side.send(key, keys[key], priority=which)
        else:
            sender.give_room(size, which % connections)
    sender.drain()
    got = {key: torch.zeros_like(data) for key, data in keys.items()}
    wire_bytes = 0
    for kernel in sender.kernels:
        for begin, frame in begins(kernel.wire):
            data = begin + FRAME_HEADER_BYTES
            part = np.frombuffer(kernel.wire, np.uint8, frame.data_bytes, data)
            end = frame.offset_bytes + frame.data_bytes
            got[frame.key].numpy()[frame.offset_bytes : end] = part
        wire_bytes += len(kernel.wire)
    assert all(torch.equal(got[key], data) for key, data in keys.items())
    assert sorted(sender.side.sent) == sorted(keys)
    assert sender.side.link.messages == len(keys)
    assert sender.side.link.sent_bytes == wire_bytes
    frames = sum(-(-data.numel() // CHUNK_BYTES) for data in keys.values())
    total = sum(data.numel() for data in keys.values()) + frames * FRAME_HEADER_BYTES
    assert wire_bytes == total
    assert pacer.reserved_bytes == (total if paced else 0)


@settings(max_examples=50)
@given(rooms=st.lists(st.integers(0, 12 * FRAME_BYTES), min_size=1, max_size=8))
def test_an_urgent_message_waits_for_no_frame_but_the_one_that_has_begun(rooms: list[int]) -> None:
    sender, size = Sender(), 128 * CHUNK_BYTES
    long, urgent = Key(0, 0, 0), Key(0, 1, 0)
    sender.side.send(long, content(long, size), priority=9)
    for room in rooms:
        sender.give_room(room)
    gone = len(sender.kernels[0].wire)
    assert gone == sum(rooms)
    sender.side.send(urgent, content(urgent, 100), priority=0)
    sender.drain()
    begin = next(at for at, frame in begins(sender.kernels[0].wire) if frame.key == urgent)
    assert begin == -(-gone // FRAME_BYTES) * FRAME_BYTES
    assert sender.side.sent == [urgent, long]


def test_what_the_kernel_takes_at_once_is_offered_together() -> None:
    sender = Sender()
    sender.side.send(Key(0, 0, 0), content(Key(0, 0, 0), 128 * CHUNK_BYTES))
    sender.give_room(1 << 30)
    # 1, 3, 7, 15, and from then on 16 at a time.
    assert sender.kernels[0].calls == 1 + 4 + 7


def test_after_a_drop_no_message_that_left_in_the_same_call_is_reported() -> None:
    sender, reported = Sender(), list[int]()
    link = sender.side.link

    def sent(unit: int) -> None:
        reported.append(unit)
        if unit == 1:
            link.finish(drop=True)

    sender.side.send(Key(0, 0, 0), content(Key(0, 0, 0), 10))
    for unit in range(1, 4):
        key = Key(0, unit, 0)
        link.send(key, content(key, 10), (0, unit), partial(sent, unit))
    sender.give_room(1 << 30)
    assert sender.kernels[0].calls == 1 + 2  # refused; the first message; the others together
    assert reported == [1]
