"""The TCP transport carries every byte to its place between processes, and ends in order."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _conforming import ManyWeights, digest, gradients
from _ranks import Group, same, settings
from _reacting import Answers
from _training import registered
from _transport_calls import (
    CHUNK_BYTES,
    all_reduces,
    all_to_all,
    fail_in_the_middle,
    gather,
    idle,
    opened,
    reopen,
)
from _until import until

from compressa.collectives.base import Exchange
from compressa.engine.start.process_groups import release_groups
from compressa.errors import CompressaError
from compressa.transports.base import Key
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.settings import Settings
from compressa.transports.tcp import TcpTransport

pytestmark = pytest.mark.ranks

FRAME_HEADER_BYTES = 48


def trained(*, config: Any) -> dict[str, Any]:
    """Train two steps; return digests of the mean gradients, and how many sockets are tuned."""
    net = ManyWeights(2)
    with registered(net, config) as (wrapped, _):
        for step in range(2):
            wrapped(*gradients(2, dist.get_rank(), step)).backward()
        count = sum(map(keeps_little_unsent, map(int, os.listdir("/proc/self/fd"))))
    return {"means": [digest(weight.grad) for weight in net.weights], "connections": count}


def keeps_little_unsent(file: int) -> bool:
    """Whether a file is a socket that carries frames; no others are tuned so."""
    try:
        with socket.socket(fileno=os.dup(file)) as link:
            return link.getsockopt(socket.IPPROTO_TCP, 25) > 0  # TCP_NOTSENT_LOWAT
    except OSError:
        return False


def close_unattached() -> dict[str, Any]:
    """Close a transport that nobody has attached, twice."""
    group = dist.new_group(backend="gloo")
    failures: list[CompressaError] = []
    before = len(os.listdir("/proc/self/fd"))
    sockets = connect_mesh(group.rank(), group.size(), 5, partial(gather, group), 20.0)
    settings = Settings(5, CHUNK_BYTES, 2 * CHUNK_BYTES, 10.0)
    transport = TcpTransport(group.rank(), sockets, settings, 1 << 20, failures.append)
    started_s = time.monotonic()
    transport.close(5.0)
    transport.close(5.0)
    seconds = time.monotonic() - started_s
    left = len(os.listdir("/proc/self/fd")) - before
    dist.destroy_process_group(group)
    release_groups([group])
    return {"left": left, "failures": len(failures), "quick": seconds < 3.0}


def wait_for_the_dead(*, number: int, connections: int = 1) -> dict[str, Any]:
    """Rank 1 is ended by a signal while rank 0 waits for it and sends to it."""
    with opened("tcp", connections=connections) as (transport, failures):
        key = Key(0, 0, 0)
        if transport.rank == 1:
            os.kill(os.getpid(), number)
        started_s = time.monotonic()
        buffer = torch.zeros(100, dtype=torch.uint8)
        exchange = Exchange({1: torch.zeros(1 << 20, dtype=torch.uint8)}, {1: buffer})
        transport.exchange(key, exchange, 0, Answers().done(key))
        until(lambda: failures)
        seconds = time.monotonic() - started_s
    alive = [t.name for t in threading.enumerate() if t.name == "reactor"]
    return {"error": str(failures[0]), "seconds": seconds, "left": len(alive)}


def test_more_than_the_kernels_hold_crosses_in_both_directions(two: Group) -> None:
    for result in two.run(all_to_all, kind="tcp", sizes=[8 << 20, 10, 8 << 20]):
        assert (result["wrong"], result["failures"]) == (0, 0)


@pytest.mark.parametrize("connections", [1, 16])
def test_messages_are_striped_over_all_connections(connections: int, four: Group) -> None:
    sizes = [1, 511, 512, 513, 5000, 3 << 20]
    frames = sum(-(-length // 512) for length in sizes)
    for result in four.run(
        all_to_all, kind="tcp", sizes=sizes, reverse=True, connections=connections
    ):
        assert (result["wrong"], result["failures"]) == (0, 0)
        overhead = result["sent_bytes"] - result["payload_bytes"]
        assert overhead == frames * FRAME_HEADER_BYTES * 3
        assert result["messages"] == len(sizes) * 3


def test_training_has_the_same_bits_over_several_connections(two: Group) -> None:
    results = []
    for count in (1, 4):
        config = settings("int8", exchange={"connections": count})
        results.append(same(two.run(trained, config=config)))
    one, four = results
    assert one["means"] == four["means"]
    assert four["connections"] - one["connections"] == 3  # the control channel has one, too


def test_idle_ranks_are_not_lost_and_send_nothing(two: Group) -> None:
    for result in two.run(idle, kind="tcp", seconds=1.2):
        assert result == {"failures": [], "sent_bytes": 0, "messages": 0}


def test_a_rank_that_gives_up_lets_the_other_end(two: Group) -> None:
    """Rank 0 takes no more, and its memory is its own again; rank 1 hears that it left."""
    first, second = two.run(fail_in_the_middle, kind="tcp", size=32 << 20, connections=4)
    assert first["untouched"]
    assert first["failures"] == []
    assert second["failures"] == ["rank 0 is lost: it has left the training"]
    assert first["answers"] == second["answers"] == 0
    assert max(first["seconds"], second["seconds"]) < 8.0


@pytest.mark.parametrize(("number", "connections"), [(signal.SIGTERM, 1), (signal.SIGKILL, 4)])
def test_a_rank_that_dies_ends_the_wait(
    number: signal.Signals, connections: int, fresh: Callable[[int], Group]
) -> None:
    group = fresh(2)
    started = group.start(wait_for_the_dead, number=int(number), connections=connections)
    outcome = group.collect(started[:1], 20.0)[0]
    assert outcome.ok, outcome.explain()
    assert outcome.value["error"].startswith("rank 1 is lost: ")
    assert outcome.value["seconds"] < 5.0
    assert outcome.value["left"] == 0


def test_the_backend_sums_beside_named_messages(four: Group) -> None:
    for result in four.run(all_reduces, kind="tcp", elems=1000):
        assert (result["sum"], result["failures"]) == ([10], 0)
        assert result["sent_bytes"] == 2 * 4 * 1000 * 3 // 4


def test_nothing_stays_open(two: Group) -> None:
    two.run(reopen, kind="tcp", times=2, connections=4)
    for files in two.run(reopen, kind="tcp", times=6, connections=4):
        assert files[-1] <= files[0] + 1


def test_a_transport_that_was_never_attached_can_be_closed(two: Group) -> None:
    assert same(two.run(close_unattached)) == {
        "left": 0,
        "failures": 0,
        "quick": True,
    }
