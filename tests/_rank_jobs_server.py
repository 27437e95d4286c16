"""Jobs of workers and servers."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import resource
import socket
import struct
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs import alive_threads
from _rank_jobs_faults import misbehave

import compressa.parameter_server
from compressa.engine import session
from compressa.errors import CompressaError
from compressa.parameter_server import Server, Worker, open_parameter_server
from compressa.transports import rendezvous
from compressa.transports.handshake import Entrance

Keys = Mapping[str, Sequence[int]]


def values_of(worker: int, step: int, keys: Keys) -> list[torch.Tensor]:
    """Return what a worker pushes in a step."""
    random = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(tuple(shape), generator=random) for shape in keys.values()]


def digest_of(means: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of tensors' bytes."""
    data = b"".join(mean.numpy().tobytes() for mean in means.values())
    return hashlib.sha256(data).hexdigest()


def train(*, config: Any, keys: Keys, steps: int = 3, **how: Any) -> dict[str, Any]:
    """Push and pull on workers, serve on servers; return digests, and what threads are left."""
    node = open_parameter_server(dist.group.WORLD, keys, config, **how)
    if isinstance(node, Server):
        node.serve()
        return {"digests": [], "left": threads_left()}
    digests = []
    with node as worker:
        for step in range(steps):
            worker.push(list(keys), values_of(worker.rank, step, keys))
            digests.append(digest_of(worker.wait(worker.pull(list(keys)))))
    return {"digests": digests, "left": threads_left()}


def train_ahead(*, config: Any, keys: Keys, steps: int = 6) -> list[str]:
    """As `train`, with every worker one step ahead; worker 0 is late now and then."""
    node = open_parameter_server(dist.group.WORLD, keys, config)
    assert isinstance(node, Worker)
    digests, names = [], list(keys)
    with node as worker:
        worker.push(names, values_of(worker.rank, 0, keys))
        for step in range(1, steps):
            time.sleep(0.05 * (worker.rank == 0 and step % 2))
            worker.push(names, values_of(worker.rank, step, keys))
            digests.append(digest_of(worker.wait(worker.pull(names, step=step - 1))))
        digests.append(digest_of(worker.wait(worker.pull(names))))
    return digests


def close_late(*, config: Any, keys: Keys) -> list[str]:
    """Have rank 0 close later than any exchange may take, and the thread for it to answer."""
    node = open_parameter_server(dist.group.WORLD, keys, config)
    assert isinstance(node, Worker)
    margin_s, session._MARGIN_S = session._MARGIN_S, 0.5
    try:
        with node as worker:
            worker.push(list(keys), values_of(worker.rank, 0, keys))
            worker.wait(worker.pull(list(keys)))
            time.sleep(2.0 if worker.rank == 0 else 0.0)
    finally:
        session._MARGIN_S = margin_s
    return threads_left()


def threads_left() -> list[str]:
    """Return our threads that still run, after a moment."""
    end_s = time.monotonic() + 2.0
    while alive_threads() and time.monotonic() < end_s:
        time.sleep(0.01)
    return alive_threads()


def fail(
    *, config: Any, keys: Keys, culprit: int, how: str, at: int = 2, **options: Any
) -> dict[str, Any]:
    """Train until the culprit misbehaves; others return what they saw, and close."""
    rank = dist.get_rank()
    node = open_parameter_server(dist.group.WORLD, keys, config, **options)
    started_s, error = time.monotonic(), None
    try:
        if isinstance(node, Server):
            if rank == culprit:
                time.sleep(0.5)
                misbehave(how)
            node.serve()
        else:
            _push_until_failure(node, keys, culprit == rank, how, at)
    except CompressaError as caught:
        error = caught
    seconds = time.monotonic() - started_s
    again = ""
    if isinstance(node, Worker):
        try:
            node.push(list(keys), values_of(0, 0, keys))
        except CompressaError as caught:
            again = str(caught)
    node.close()
    return {
        "type": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "message": str(error),
        "again": again,
        "seconds": seconds,
        "left": threads_left(),
    }


def _push_until_failure(worker: Worker, keys: Keys, culprit: bool, how: str, at: int) -> None:
    for step in range(50):
        if culprit and step == at:
            if how == "sleep":
                time.sleep(4.5)
            elif how == "leave":
                worker.__exit__(ZeroDivisionError, None, None)
                return
            else:
                misbehave(how)
        worker.push(list(keys), values_of(worker.rank, step, keys))
        worker.wait(worker.pull(list(keys)))
        time.sleep(0.02)


def open_differently(*, config: Any, what: str) -> None:
    """Open with arguments that differ between ranks, or are wrong on one."""
    rank = dist.get_rank()
    keys = {"a": (4,), "b": (5 + rank if what == "shape" else 5,)}
    if what == "order" and rank:
        keys = dict(reversed(keys.items()))
    servers = 9 if what == "one is wrong" and rank == 1 else 1
    node = open_parameter_server(dist.group.WORLD, keys, config, servers=servers)
    node.close()


def run_example() -> int:
    """Run the example of the package's docstring; return how many steps it made."""
    example = (inspect.getdoc(compressa.parameter_server) or "").split("\n\n")[1]
    steps = 0

    def gradients() -> list[torch.Tensor]:
        nonlocal steps
        steps += 1
        return [torch.ones(1024, 512), torch.ones(512)]

    known = {"dist": dist, "gradients": gradients, "Server": Server}
    known["open_parameter_server"] = open_parameter_server
    exec(textwrap.dedent(example).replace("range(100)", "range(3)"), known)
    return steps


def train_besieged(*, config: Any, keys: Keys, late_s: float) -> dict[str, Any]:
    """As `train`, with attackers at the door while the others are late, and afterwards.

    Returns also by how much the memory of this process has grown, and how long opening took.
    """
    over, attackers = threading.Event(), list[threading.Thread]()
    wait = Entrance.wait

    def besieged(self: Entrance, *arguments: Any) -> None:
        seat = self._listener.getsockname()
        attackers.extend(threading.Thread(target=a, args=(seat, over)) for a in _ATTACKS)
        for attacker in attackers:
            attacker.start()
        wait(self, *arguments)

    connect = rendezvous._connect

    def connect_late(*arguments: Any) -> socket.socket:
        time.sleep(late_s)
        return connect(*arguments)

    before_kb = _peak_kb()
    started_s = time.monotonic()
    try:
        with (
            mock.patch.object(Entrance, "wait", besieged),
            mock.patch.object(rendezvous, "_connect", connect_late),
        ):
            node = open_parameter_server(dist.group.WORLD, keys, config)
        opened_s, grown_kb = time.monotonic() - started_s, _peak_kb() - before_kb
        assert isinstance(node, Worker)
        with node as worker:
            worker.push(list(keys), values_of(worker.rank, 0, keys))
            digest = digest_of(worker.wait(worker.pull(list(keys))))
    finally:
        over.set()
        for attacker in attackers:
            attacker.join()
    return {"digest": digest, "opened_s": opened_s, "grown_kb": grown_kb, "left": threads_left()}


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


Seat = tuple[str, int]


def _crowd(seat: Seat, over: threading.Event) -> None:
    """Come by hundreds, say nothing, and stay."""
    links = []
    with contextlib.suppress(OSError):
        while not over.wait(0.002) and len(links) < 400:
            links.append(socket.create_connection(seat, 1.0))
    over.wait()
    for link in links:
        link.close()


def _drip(seat: Seat, over: threading.Event) -> None:
    """Say a hello byte by byte, for ever."""
    with contextlib.suppress(OSError), socket.create_connection(seat, 1.0) as link:
        while not over.wait(0.02):
            link.sendall(b"c")


def _shout(seat: Seat, over: threading.Event) -> None:
    """Announce absurd lengths, as much as anybody takes, again and again."""
    while not over.wait(0.01):
        with contextlib.suppress(OSError), socket.create_connection(seat, 1.0) as link:
            link.settimeout(0.2)
            link.sendall(struct.pack("<Q", 1 << 62) * (1 << 17))


def _echo(seat: Seat, over: threading.Event) -> None:
    """Give back what the door says, as if that were a proof."""
    while not over.wait(0.01):
        with contextlib.suppress(OSError), socket.create_connection(seat, 1.0) as link:
            link.settimeout(0.2)
            link.sendall(b"compressa-tcp-2\0" + link.recv(16) * 8)
            link.recv(100)


_ATTACKS = (_crowd, _drip, _shout, _echo)
