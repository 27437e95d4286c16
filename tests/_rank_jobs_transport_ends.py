"""Jobs for rank tests of how transports end: goodbyes, failures and deaths, and what is left."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs_transport import CHUNK_BYTES, Answers, gather, message, opened, until

from compressa.collectives.base import Exchange
from compressa.engine.start.process_groups import release_groups
from compressa.errors import CompressaError
from compressa.transports.base import Key
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.settings import Settings
from compressa.transports.tcp import TcpTransport


def leave_early(*, kind: str = "gloo") -> str:
    """Rank 1 says goodbye while rank 0 waits for it; return rank 0's failure."""
    with opened(kind) as (transport, failures):
        if transport.rank == 0:
            buffer = torch.zeros(8, dtype=torch.uint8)
            transport.exchange(
                Key(0, 0, 0), Exchange({}, {1: buffer}), 0, Answers().done(Key(0, 0, 0))
            )
            assert list(transport.missing(Key(0, 0, 0))) == [1]
            end_s = time.monotonic() + 5.0
            while not failures and time.monotonic() < end_s:
                time.sleep(0.01)
    return str(failures[0]) if failures else ""


def send_to_who_left(*, kind: str) -> str:
    """Rank 0 only sends, to a rank that has said goodbye; return rank 0's failure."""
    with opened(kind) as (transport, failures):
        if transport.rank == 0:
            own: Any = transport.transport
            until(lambda: 1 in own.gone)
            assert not failures  # nothing was due
            exchange = Exchange({1: message(0, 1, 0, 100)}, {})
            transport.exchange(Key(0, 0, 0), exchange, 0, Answers().done(Key(0, 0, 0)))
            until(lambda: failures)
    return str(failures[0]) if failures else ""


def fail_in_the_middle(*, kind: str, size: int, connections: int = 1) -> dict[str, Any]:
    """Rank 0 gives up while rank 1 sends it far more than the kernel holds; both must end."""
    started_s = time.monotonic()
    with opened(kind, connections=connections) as (transport, failures):
        key, answers = Key(0, 0, 0), Answers()
        buffer = torch.zeros(size, dtype=torch.uint8)
        if transport.rank == 0:
            transport.exchange(key, Exchange({}, {1: buffer}), 0, answers.done(key))
            until(buffer.any)
            transport.fail(CompressaError("enough"))
            kept = buffer.clone()
            time.sleep(0.2)
            untouched = torch.equal(kept, buffer)
        else:
            sent = Exchange({0: torch.ones(size, dtype=torch.uint8)}, {0: buffer})
            transport.exchange(key, sent, 0, answers.done(key))
            until(lambda: failures)
            untouched = True
    return {
        "untouched": untouched,
        "answers": len(answers.order),
        "failures": [str(failure) for failure in failures],
        "seconds": time.monotonic() - started_s,
    }


def reopen(*, kind: str, times: int, connections: int = 1) -> list[int]:
    """Open and close; return how many files are open each time."""
    files = []
    for _ in range(times):
        with opened(kind, connections=connections) as (transport, failures):
            key, answers = Key(0, 0, 0), Answers()
            peers = [peer for peer in range(transport.size) if peer != transport.rank]
            exchange = Exchange(
                {peer: torch.ones(5, dtype=torch.uint8) for peer in peers},
                {peer: torch.zeros(5, dtype=torch.uint8) for peer in peers},
            )
            transport.exchange(key, exchange, 0, answers.done(key))
            answers.wait(key)
        assert not failures
        dist.barrier()
        files.append(len(os.listdir("/proc/self/fd")))
    return files


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
