"""Multicast as a program, on a virtual clock: whatever is lost, all is heard in the end."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectives_broadcast import some_bytes
from test_collectives_direct import run_all

from compressa.collectives import Program
from compressa.collectives.base import Exchange
from compressa.collectives.broadcast_multicast import (
    DEAF_AFTER,
    FIRST_BURST,
    Bits,
    Receiver,
    Sender,
    receive,
    send,
)
from compressa.errors import PayloadError, TransportError
from compressa.transports.loopback import Loopback

PACKET = 10


class Ether(Sender):
    """A network that copies packets to all ears, and loses some of them."""

    trouble = "the ether is thick"

    def __init__(self, most: int) -> None:
        self.ears: list[Ear] = []
        self.bursts: list[int] = []
        self.shares: list[float] = []
        self._most = most

    def packets(self, size_bytes: int) -> int:
        return -(-size_bytes // PACKET)

    def send(self, bucket: int, data: torch.Tensor, numbers: Sequence[int]) -> int:
        sent = numbers[: self._most]
        self.bursts.append(len(sent))
        for ear in self.ears:
            for number in sent:
                ear.hear(bucket, number, data[number * PACKET : (number + 1) * PACKET])
        return len(sent)

    def lost(self, share: float, packets: int) -> None:
        assert packets == self.bursts[-1]
        self.shares.append(share)


class Ear(Receiver):
    """Loses packets by chance."""

    trouble = "the ether is thick"

    def __init__(self, loss: float, seed: int) -> None:
        self._loss, self._random = loss, random.Random(seed)
        self.buckets: dict[int, tuple[torch.Tensor, Bits]] = {}

    def hear(self, bucket: int, number: int, part: torch.Tensor) -> None:
        if self._random.random() >= self._loss and bucket in self.buckets:
            data, missing = self.buckets[bucket]
            data[number * PACKET : (number + 1) * PACKET] = part
            missing[number] = False

    def expect(self, bucket: int, data: torch.Tensor) -> None:
        self.buckets[bucket] = data, np.ones(-(-data.numel() // PACKET), np.bool_)

    def missing(self, bucket: int) -> Bits:
        return self.buckets[bucket][1]

    def forget(self, bucket: int) -> None:
        del self.buckets[bucket]


def multicast(
    losses: Sequence[float], size_bytes: int, most: int = 1 << 20
) -> tuple[list[object], Ether, list[torch.Tensor]]:
    """Send from the last rank to those before, which lose such shares."""
    source, ether = len(losses), Ether(most)
    data = some_bytes(size_bytes)
    held = [*(torch.zeros_like(data) for _ in losses), data]
    ether.ears = [Ear(loss, seed) for seed, loss in enumerate(losses)]

    def program(rank: int) -> Program[None]:
        if rank == source:
            return send(data, 3, source + 1, range(source), ether)
        return receive(held[rank], 3, source + 1, source, ether.ears[rank])

    ends = run_all(Loopback(source + 1), program)
    assert not any(ear.buckets for ear in ether.ears)
    return list(ends), ether, held


@settings(max_examples=40)
@given(
    losses=st.lists(st.sampled_from([0.0, 0.05, 0.3]), min_size=1, max_size=9),
    size_bytes=st.sampled_from([0, 1, 9, 10, 11, 500, 4001]),
    most=st.sampled_from([7, 1 << 20]),
)
def test_what_is_lost_is_sent_again(losses: list[float], size_bytes: int, most: int) -> None:
    ends, ether, held = multicast(losses, size_bytes, most)
    assert ends == [None] * (len(losses) + 1)
    assert all(torch.equal(own, held[-1]) for own in held)
    if not any(losses):
        assert sum(ether.bursts) == ether.packets(size_bytes)


def test_only_what_somebody_lacks_is_sent_again() -> None:
    ends, ether, _ = multicast([0.0, 0.1], 40_000)
    assert ends == [None] * 3
    assert ether.bursts[0] == FIRST_BURST
    assert sum(ether.bursts) < 1.2 * 4000
    assert all(0 <= share < 0.5 for share in ether.shares[:2])


def test_who_hears_nothing_is_named_by_all() -> None:
    ends, ether, _ = multicast([0.0, 1.0, 0.2, 1.0], 4000)
    assert ether.bursts == [FIRST_BURST] * DEAF_AFTER
    for end in ends:
        assert isinstance(end, TransportError)
        assert str(end).startswith(f"ranks 1, 3 heard nothing of {DEAF_AFTER} bursts")
        assert str(end).endswith("the ether is thick")


def test_packets_that_there_are_not_can_not_be_asked_for() -> None:
    def asks(rank: int) -> Program[None]:
        yield Exchange({1: torch.zeros(1, dtype=torch.uint8)}, {})
        yield Exchange({}, {1: torch.zeros(5, dtype=torch.uint8)})
        yield Exchange({1: torch.tensor([255], dtype=torch.uint8)}, {})

    def program(rank: int) -> Program[None]:
        return asks(rank) if rank == 0 else send(some_bytes(35), 0, 2, [0], Ether(9))

    ends = run_all(Loopback(2), program)
    assert isinstance(ends[1], PayloadError)


def test_an_end_before_all_has_come_is_found() -> None:
    def lies() -> Program[None]:
        yield Exchange({}, {0: torch.zeros(1, dtype=torch.uint8)})
        yield Exchange({0: torch.zeros(5, dtype=torch.uint8)}, {})

    def program(rank: int) -> Program[None]:
        return lies() if rank else receive(some_bytes(35), 0, 2, 1, Ear(0.0, 0))

    ends = run_all(Loopback(2), program)
    assert isinstance(ends[0], PayloadError)


@pytest.mark.parametrize("size", [1, 8, 17])
def test_a_multicast_takes_one_burst_of_questions_where_nothing_is_lost(size: int) -> None:
    _, ether, _ = multicast([0.0] * size, FIRST_BURST * PACKET)
    assert ether.bursts == [FIRST_BURST]
    assert ether.shares == [0.0]
