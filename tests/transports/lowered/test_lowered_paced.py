"""The compiled loop takes its turns from the bucket that all senders of a host share."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
import torch
from _lowered import CHUNK_BYTES, KEY, End

from compressa.collectives.base import Exchange
from compressa.collectives.lowering import VALUES, Extent, HopTable, lowered_hops
from compressa.pacing import Pacer
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.lowered import AVAILABLE
from compressa.transports.lowered.bucket import SharedEmptyAt

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")

RATE, BURST_BYTES = 8e6, 8192  # a megabyte a second, 8 ms of it
FRAME_BYTES = CHUNK_BYTES + FRAME_HEADER_BYTES
LENGTH = 50 * CHUNK_BYTES


class Sender:
    """A paced loop, whose only peer is a plain socket here."""

    def __init__(self, pacer: Pacer) -> None:
        near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.end = End(0, {1: [near]}, pacer=pacer)
        self.came: list[tuple[float, int]] = []

    def send(self, length: int, key: Key = KEY) -> None:
        self.end.exchange(key, Exchange({1: torch.zeros(length, dtype=torch.uint8)}, {}))

    def turn(self) -> None:
        self.end.loop.wait(-1, 0.001)
        try:
            count = len(self.far.recv(1 << 20))
        except BlockingIOError:
            return
        self.came.append((time.monotonic(), count))

    def close(self) -> None:
        self.end.close()
        self.far.close()


def check_pace(came: list[tuple[float, int]]) -> None:
    """What came from any time on is no more than rate * t + burst; the first look may be late."""
    for first in range(len(came)):
        begin_s, sum_bytes = came[first - 1][0] if first else came[0][0], 0
        for now_s, count in came[first:]:
            sum_bytes += count
            if first:  # all of it left after the look before
                assert sum_bytes <= RATE / 8 * (now_s - begin_s) + BURST_BYTES + FRAME_BYTES


def test_no_more_leaves_than_the_rate_and_a_burst() -> None:
    sender = Sender(Pacer(RATE, BURST_BYTES, SharedEmptyAt()))
    began_s = time.monotonic()
    sender.send(LENGTH)
    while not sender.end.done:
        sender.turn()
    took_s = time.monotonic() - began_s
    due_s = (50 * FRAME_BYTES - BURST_BYTES) * 8 / RATE
    assert due_s <= took_s
    check_pace(sender.came)
    sender.close()


def test_who_was_idle_sends_a_burst_at_once() -> None:
    sender = Sender(Pacer(RATE, 4 * FRAME_BYTES, SharedEmptyAt()))
    for step in range(2):
        sender.send(4 * CHUNK_BYTES, Key(step, 0, 0))  # 16 ms of the rate
        sender.end.loop.wait(-1, 0.0)
        assert len(sender.end.done) == step + 1
        time.sleep(0.03)
    sender.close()


def test_who_shares_a_bucket_shares_the_rate(tmp_path: Path) -> None:
    file = tmp_path / "bucket"
    file.touch(0o600)
    pacers = [Pacer(RATE, BURST_BYTES, SharedEmptyAt(file)) for _ in range(3)]
    senders = [Sender(pacer) for pacer in pacers[:2]]
    began_s = time.monotonic()
    for sender in senders:
        sender.send(LENGTH // 2)
    pacers[2].reserve(25 * FRAME_BYTES)  # not by a loop
    while not all(sender.end.done for sender in senders):
        for sender in senders:
            sender.turn()
    assert time.monotonic() - began_s >= (75 * FRAME_BYTES - BURST_BYTES) * 8 / RATE
    for sender in senders:
        sender.close()


@pytest.mark.parametrize("stripes", [1, 16])
def test_what_is_urgent_waits_for_one_frame_at_most(stripes: int) -> None:
    pairs = [socket.socketpair() for _ in range(stripes)]
    end = End(0, {1: [near for near, _ in pairs]}, pacer=Pacer(RATE, 0, SharedEmptyAt()))
    large, small = torch.zeros(LENGTH, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
    end.exchange(Key(0, 0, 0), Exchange({1: large}, {}), priority=9)
    for _ in range(4):
        end.loop.wait(-1, 0.005)
    began_s = time.monotonic()
    end.exchange(Key(0, 1, 0), Exchange({1: small}, {}), priority=1)
    while not end.done:
        end.loop.wait(-1, 0.001)
    assert end.done == [Key(0, 1, 0)]
    # A frame that has its turn already, its own turn, and what a busy machine adds.
    assert time.monotonic() - began_s < 5 * FRAME_BYTES * 8 / RATE
    end.close()
    for _, far in pairs:
        far.close()


def test_a_hop_that_begins_where_a_message_has_left_is_not_forgotten() -> None:
    """What is sent to a peer that has been served in this turn leaves in the next one, at once."""
    pairs = [socket.socketpair() for _ in range(2)]
    end = End(0, {1: [pairs[0][0]], 2: [pairs[1][0]]}, pacer=Pacer(RATE, 0, SharedEmptyAt()))
    extents = [HopTable(n, {peer: Extent(VALUES, 0, 64)}, {}) for n, peer in enumerate((2, 1))]
    program = end.loop.program(lowered_hops(extents, 0, 64), torch.uint8)
    assert program is not None
    values = torch.zeros(64, dtype=torch.uint8)
    end.start(program, values, KEY)
    began_s = time.monotonic()
    while not end.done:
        end.loop.wait(-1, 5.0)
    assert time.monotonic() - began_s < 2.0
    end.close()
    for _, far in pairs:
        far.close()


def test_a_rate_that_is_no_whole_number_is_never_exceeded() -> None:
    sender = Sender(Pacer(RATE + 0.7, 0, SharedEmptyAt()))
    began_s = time.monotonic()
    sender.send(4 * CHUNK_BYTES)
    while not sender.end.done:
        sender.turn()
    assert time.monotonic() - began_s >= 4 * FRAME_BYTES * 8 / (RATE + 0.7)
    sender.close()
