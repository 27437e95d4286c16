"""The control channel: one thread for all peers, signs of life, goodbyes, and what a loss is."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from _ranks import Group, settings
from _tcp_ends import tcp_pair
from _training import registered
from _until import until

from compressa.collectives.base import Exchange
from compressa.engine.control.channel import Channel
from compressa.errors import CompressaError
from compressa.transports.base import Key
from compressa.transports.settings import Settings
from compressa.transports.tcp import TcpTransport

HOW = Settings(0, 1 << 16, 1 << 18, silence_s=1.0, heartbeat_s=0.1, alive=True)
KEY = Key(1, 2, 3)
PAIRS = ((0, 1), (0, 2), (1, 2))


class Rank:
    """A rank's channel in this process, and what it noticed."""

    def __init__(self, rank: int, links: dict[int, list[socket.socket]]) -> None:
        self.failures: list[CompressaError] = []
        self.transport = TcpTransport(rank, links, HOW, 1 << 20, self.failures.append)
        self.channel = Channel(self.transport, HOW)
        self.channel.start(lambda: None)

    def on_thread(self, event: Callable[[], Any]) -> None:
        self.channel._reactor.post(event)

    def cut(self) -> None:
        """Close all connections without a word."""
        for link in self.transport._links.values():
            link.close()


@pytest.fixture
def world() -> Iterator[list[Rank]]:
    """Three ranks in this process."""
    links: list[dict[int, list[socket.socket]]] = [{}, {}, {}]
    for one, other in PAIRS:
        links[one][other], links[other][one] = ([end] for end in tcp_pair())
    ranks = [Rank(rank, own) for rank, own in enumerate(links)]
    yield ranks
    for rank in ranks:
        rank.channel.close(0.0)
    for rank in ranks:
        rank.channel.close(5.0)
    assert not [each for each in threading.enumerate() if each.name == "compressa-control"]


def test_an_exchange_brings_everything_to_everybody(world: list[Rank]) -> None:
    received: list[Any] = [None] * 3
    for number, rank in enumerate(world):
        own = torch.full((200_000,), number, dtype=torch.uint8)
        others = [peer for peer in range(3) if peer != number]
        incoming = {peer: torch.zeros_like(own) for peer in others}
        exchange = Exchange(dict.fromkeys(others, own), incoming, True)
        rank.channel.exchange(KEY, exchange, lambda got, n=number: received.__setitem__(n, got))
    assert until(lambda: None not in received)
    for number, got in enumerate(received):
        assert got.keys() == {0, 1, 2} - {number}
        assert all(bool((data == peer).all()) for peer, data in got.items())


def test_what_is_longer_than_is_due_is_told_to_who_waits(world: list[Rank]) -> None:
    world[0].channel.send(1, KEY, torch.ones(9, dtype=torch.uint8))
    assert until(lambda: world[1].transport.inboxes[0]._messages)
    got: list[Any] = []
    due = Exchange({}, {0: torch.zeros(5, dtype=torch.uint8)}, True)
    world[1].channel.exchange(KEY, due, got.append)
    assert until(lambda: got)
    assert "sends 9 bytes for unit 2, stage 3 of step 1, where 5 are due" in str(got[0])


def test_idle_peers_give_signs_of_life(world: list[Rank]) -> None:
    time.sleep(2 * HOW.silence_s)
    now_s = time.monotonic()
    for rank in world:
        assert rank.failures == []
        assert all(now_s - heard_s < HOW.silence_s for heard_s in rank.channel.heard_s.values())


def test_who_says_goodbye_is_gone_and_not_lost(world: list[Rank]) -> None:
    world[2].channel.close(5.0)
    assert until(lambda: all(rank.channel.gone == {2} for rank in world[:2]))
    assert [dict(rank.channel.lost) for rank in world] == [{}, {}, {}]
    assert [rank.failures for rank in world] == [[], [], []]


def test_a_note_to_who_has_left_is_dropped_and_a_message_is_a_loss(world: list[Rank]) -> None:
    world[2].channel.close(5.0)
    assert until(lambda: all(rank.channel.gone == {2} for rank in world[:2]))
    data = torch.ones(1, dtype=torch.uint8)
    world[0].channel.tell(2, KEY, data)
    world[1].channel.send(2, KEY, data)
    assert until(lambda: world[1].failures)
    assert str(world[1].failures[0]) == "rank 2 is lost: it has left the training"
    assert world[0].failures == []


def test_a_stream_that_ends_without_a_goodbye_was_cut(world: list[Rank]) -> None:
    """As the kernel ends those of a process that is killed between two frames."""
    world[2].on_thread(world[2].cut)
    assert until(lambda: all(2 in rank.channel.lost for rank in world[:2]))
    for rank in world[:2]:
        assert str(rank.channel.lost[2]).startswith("rank 2 is lost: its connection was closed")
        assert len(rank.failures) == 1
        assert rank.channel.gone == frozenset()


def test_who_falls_silent_is_lost_though_its_connection_stands(world: list[Rank]) -> None:
    """Much that it does not take keeps nobody from noticing, nor from hearing the others."""
    over, began_s = threading.Event(), time.monotonic()
    world[2].on_thread(lambda: over.wait(10.0))
    world[0].channel.send(2, KEY, torch.zeros(1 << 24, dtype=torch.uint8))
    assert until(lambda: all(rank.failures for rank in world[:2]))
    assert time.monotonic() - began_s < HOW.silence_s + 2.0
    over.set()
    for rank, other in ((world[0], 1), (world[1], 0)):
        assert str(rank.failures[0]) == "rank 2 is lost: nothing was heard for 1 s"
        assert list(rank.channel.lost) == [2]
        assert rank.channel.heard_s[other] > began_s + 0.5


def threads_of(*, config: Any) -> list[str]:
    """Register; return the names of this library's threads."""
    with registered("mlp", config):
        return [each.name for each in threading.enumerate() if each.name.startswith("compressa")]


@pytest.mark.ranks
def test_a_process_has_one_control_thread_whatever_the_number_of_ranks(four: Group) -> None:
    for names in four.run(threads_of, config=settings("int8")):
        assert names.count("compressa-control") == 1
        assert not [name for name in names if "send" in name or "receive" in name]
