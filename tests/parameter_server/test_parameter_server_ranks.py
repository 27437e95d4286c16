"""Parameter servers as processes: real sockets, and ranks that die, leave or are late."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import resource
import signal
import socket
import struct
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _failing import misbehave
from _ranks import Group, Outcome, Pools, same, settings
from _server_world import ServerWorld
from _training import alive_threads

import compressa.parameter_server
from compressa.engine import session
from compressa.errors import CompressaError
from compressa.parameter_server import Server, Worker, open_parameter_server
from compressa.transports import rendezvous
from compressa.transports.handshake import Entrance
from compressa.transports.lowered.compile import prepare

pytestmark = pytest.mark.ranks

KEYS = {"w": [300, 40], "b": [40]}
DEDICATED: dict[str, Any] = {"servers": 1, "colocated": False}


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
    """As `train`, with attackers who connect while the others are late, and afterwards.

    Returns also by how much the memory of this process has grown, and how long opening took.
    """
    over, attackers = threading.Event(), list[threading.Thread]()
    wait = Entrance.wait

    def besieged(self: Entrance, *arguments: Any) -> None:
        seat = self._listener.getsockname()
        new = [threading.Thread(target=a, args=(seat, over)) for a in _ATTACKS]
        attackers.extend(new)
        for attacker in new:
            attacker.start()
        wait(self, *arguments)

    connect = rendezvous._connect

    def connect_late(*arguments: Any) -> socket.socket:
        time.sleep(late_s)
        return connect(*arguments)

    prepare()  # to load it takes some megabytes
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
    """Give back what is said to whoever connects, as if that were a proof."""
    while not over.wait(0.01):
        with contextlib.suppress(OSError), socket.create_connection(seat, 1.0) as link:
            link.settimeout(0.2)
            link.sendall(b"compressa-tcp-2\0" + link.recv(16) * 8)
            link.recv(100)


_ATTACKS = (_crowd, _drip, _shout, _echo)


def impatient(**exchange: Any) -> dict[str, Any]:
    times = {"heartbeat_s": 0.3, "silence_s": 2.0, "deadline_s": 2.0}
    return settings("int8", exchange={**times, **exchange})


def due(size: int, config: Mapping[str, Any], steps: int = 3, **how: Any) -> list[str]:
    """Return what workers get on a virtual clock."""
    world, digests = ServerWorld(size, KEYS, config, **how), []
    for step in range(steps):
        pushed = [values_of(worker.rank, step, KEYS) for worker in world.workers]
        means = world.step([dict(zip(KEYS, own, strict=True)) for own in pushed])
        digests.append(same([digest_of(mean) for mean in means]))
    return digests


@pytest.mark.parametrize(
    ("size", "how", "compressor", "transport"),
    [
        (3, DEDICATED, "none", "tcp"),
        (3, DEDICATED, "topk", "tcp"),
        (3, DEDICATED, "int8", "tcp"),
        (3, {}, "int8", "tcp"),
        (4, {"servers": [0, 2], "colocated": False}, "int8", "tcp"),
        (4, {"servers": [1]}, "topk", "tcp"),
    ],
)
def test_workers_get_the_bits_that_they_get_on_a_virtual_clock_and_leave_nothing_behind(
    size: int, how: dict[str, Any], compressor: str, transport: str, pools: Pools
) -> None:
    config = settings(compressor, exchange={"transport": transport})
    answers = pools.get(size).run(train, config=config, keys=KEYS, **how)
    expected = due(size, config, **how)
    workers = ServerWorld(size, KEYS, config, **how).placement.workers
    for rank, answer in enumerate(answers):
        assert answer["digests"] == (expected if rank in workers else [])
        assert answer["left"] == []


def test_workers_that_push_in_slots_get_the_same_bits(pools: Pools) -> None:
    config = settings("int8")
    slotted = {**config, "schedule": {"server_bits_per_s": 1e8}}
    answers = pools.get(3).run(train, config=slotted, keys=KEYS, **DEDICATED)
    for answer in answers[:2]:
        assert answer["digests"] == due(3, config, **DEDICATED)
        assert answer["left"] == []


@pytest.mark.parametrize("connections", [1, 3])
def test_workers_a_step_ahead_of_a_late_one_get_the_same(connections: int, pools: Pools) -> None:
    config = settings("int8", exchange={"connections": connections})
    digests = pools.get(3).run(train_ahead, config=config, keys=KEYS)
    assert same(digests) == due(3, config, steps=6)


def test_the_example_of_the_documentation_runs(pools: Pools) -> None:
    assert pools.get(3).run(run_example) == [3, 3, 0]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("shape", "the ranks differ in"),
        ("order", "the ranks differ in order of keys"),
        ("one is wrong", "servers = 9 does not name servers among 2 ranks"),
    ],
)
def test_ranks_that_do_not_agree_are_refused_and_can_open_again(
    what: str, said: str, two: Group
) -> None:
    outcomes = two.errors(open_differently, config=impatient(), what=what)
    assert {outcome.error["type"] for outcome in outcomes if outcome.error} == {"ConfigError"}
    assert all(outcome.error and said in outcome.error["message"] for outcome in outcomes)
    two.run(open_differently, config=impatient(), what="nothing")


def test_a_colocated_server_works_for_as_long_as_some_worker_does(two: Group) -> None:
    config = impatient(deadline_s=1.0)
    answers = two.run(close_late, config=config, keys=KEYS)
    assert answers == [[], []]


def check(outcomes: list[Outcome], within_s: float) -> list[dict[str, Any]]:
    """Look at what survivors saw; they leave nothing behind."""
    for outcome in outcomes:
        assert outcome.ok, outcome.explain()
        assert outcome.value["seconds"] < within_s, outcome.value
        assert outcome.value["left"] == []
        assert outcome.value["again"] in ("", outcome.value["message"])
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize(
    ("how", "culprit", "options"),
    [
        ("kill", 1, {}),
        ("kill", 2, DEDICATED),
        ("stop", 2, DEDICATED),
        ("leave", 1, DEDICATED),
    ],
)
def test_a_worker_or_server_that_is_lost_is_named_by_all_others(
    how: str, culprit: int, options: dict[str, Any], fresh: Callable[[int], Group]
) -> None:
    group = fresh(3)
    job = {"config": impatient(deadline_s=20.0), "keys": KEYS, "culprit": culprit, "how": how}
    started = group.start(fail, **job, **options)
    for seen in check(group.collect([p for p in started if p.rank != culprit], 20.0), 8.0):
        assert (seen["type"], seen["rank"]) == ("PeerLost", culprit), seen
        assert f"rank {culprit} is lost" in seen["message"]
    if how == "kill":
        assert group.collect([started[culprit]], 5.0)[0].exit_code == -signal.SIGKILL


def test_a_late_worker_is_named_by_all(pools: Pools) -> None:
    job = {"config": impatient(), "keys": KEYS, "culprit": 1, "how": "sleep"}
    outcomes = pools.get(3).outcomes(fail, **job)
    for seen in check(outcomes, 8.0):
        assert seen["type"] in ("Timeout", "PeerLost"), seen
        assert "for ranks 1 in" in seen["message"], seen
        assert "push of key 'w" in seen["message"], seen
        assert "step 2" in seen["message"], seen


def test_attackers_who_connect_change_nothing_and_take_little(
    fresh: Callable[[int], Group],
) -> None:
    """Crowds, drips, absurd lengths and echoes, while the workers that are due are late."""
    config, late_s = settings("int8"), 1.5
    answers = fresh(3).run(train_besieged, config=config, keys=KEYS, late_s=late_s)
    assert same([answer["digest"] for answer in answers]) == due(3, config, steps=1)[0]
    for answer in answers:
        assert late_s < answer["opened_s"] < 20.0
        assert answer["grown_kb"] < 64 << 10
        assert answer["left"] == []
