"""A rank that dies, stops or gives up ends the wait on all others, with its name."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _failing import _kept, misbehave, train_until_failure
from _rank_models import build, loss_of
from _ranks import Group, Outcome, same, settings
from _training import (
    Logged,
    _optimizer,
    _stores,
    alive_threads,
    digest,
    registered,
    run_steps,
    train,
)
from _transports import ON_HOST
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.transports.handshake import Entrance

pytestmark = pytest.mark.ranks

DEADLINE_S = 20.0
NOISE = ("terminate called", "Fatal Python error", "Segmentation fault", "core dumped")


def train_uncollected(*, config: Any) -> list[str]:
    """Train a step and close, without a garbage collector that would break cycles."""
    gc.disable()
    try:
        with registered("mlp", config) as (wrapped, _):
            loss_of(wrapped, dist.get_rank(), 0, torch.float32).backward()
        return alive_threads()
    finally:
        gc.enable()


def train_and_raise(*, config: Any, culprit: int) -> None:
    """As `train_until_failure`, but nobody catches anything."""
    rank = dist.get_rank()
    with registered("mlp", config) as (wrapped, _):
        for step in range(1000):
            if step == 2 and rank == culprit:
                misbehave("raise")
            loss_of(wrapped, rank, step, torch.float32).backward()


def train_and_forget_to_close(*, config: Any, keep: bool = True, destroy: bool = False) -> int:
    """Train and do not close the handle; perhaps destroy all process groups."""
    rank = dist.get_rank()
    wrapped = DistributedDataParallel(build("mlp", rank))
    handle = compressa.register_comm_hook(wrapped, config)
    for step in range(3):
        loss_of(wrapped, rank, step, torch.float32).backward()
    if keep:
        _kept.append((wrapped, handle))
    if destroy:
        dist.destroy_process_group()
    return handle.stats().steps


def train_after_close(*, config: Any) -> None:
    """Go on training with a hook whose handle is closed."""
    rank = dist.get_rank()
    with registered("mlp", config) as (wrapped, _):
        loss_of(wrapped, rank, 0, torch.float32).backward()
    with torch.no_grad():
        loss_of(wrapped, rank, 1, torch.float32)
    loss_of(wrapped, rank, 1, torch.float32).backward()


def train_and_drop_the_model(*, config: Any) -> bool:
    """Train a step, close and drop the model; return whether it is gone."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        loss_of(wrapped, dist.get_rank(), 0, torch.float32).backward()
        model = weakref.ref(wrapped)
    del wrapped, _
    gc.collect()
    return model() is None


def resources() -> Mapping[str, int]:
    """Count threads, sockets and files of this process."""
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "ours": len(alive_threads()),
    }


def train_among_strangers(*, config: Any, wire: list[int], steps: int = 20) -> dict[str, Any]:
    """Train while strangers connect to wherever this process listens, and send some bytes.

    They come to where the transport listens before the ranks do, and to what is open afterwards,
    but for the store of torch's launcher, in every step.
    """
    data, strangers = bytes(wire), list[socket.socket]()
    wait = Entrance.wait

    def besieged(self: Entrance, *arguments: Any) -> None:
        strangers.append(_visit(self._listener.getsockname(), data))
        wait(self, *arguments)

    net = build("mlp", dist.get_rank())
    with (
        Logged() as logged,
        mock.patch.object(Entrance, "wait", besieged),
        registered(net, config) as (model, _),
    ):
        seats = [seat for seat in listening() if seat[1] not in [s.port for s in _stores]]
        optimizer = _optimizer(net)
        for step in range(steps):
            strangers += [_visit(seat, data) for seat in seats]
            run_steps(model, optimizer, step, 1)
    for stranger in strangers:
        stranger.close()
    return {"parameters": digest(net), "logged": logged.texts, "visits": len(strangers)}


def _visit(seat: tuple[str, int], data: bytes) -> socket.socket:
    link = socket.create_connection(seat, 5.0)
    link.sendall(data)
    return link


def listening() -> list[tuple[str, int]]:
    """Return where this process listens, over IPv4."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{name}"))
    seats = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            address, port = fields[1].split(":")
            seats.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return seats


def impatient(compressor: str = "topk", **exchange: Any) -> dict[str, Any]:
    times = {"heartbeat_s": 0.3, "silence_s": 2.0, "deadline_s": DEADLINE_S}
    return settings(compressor, exchange={**times, **exchange})


def check_survivors(outcomes: list[Outcome], culprit: int, within_s: float) -> None:
    assert outcomes
    for outcome in outcomes:
        assert outcome.ok, outcome.explain()
        seen = outcome.value
        assert seen["type"] == "PeerLost", seen
        assert seen["rank"] == culprit, seen
        assert f"rank {culprit}" in seen["message"]
        assert seen["seconds"] < within_s, seen
        assert seen["again"] == seen["message"]


def leave_promptly(group: Group, ranks: list[int]) -> None:
    """The process ends in order soon after a failure, and says nothing alarming."""
    processes = [group.processes[rank] for rank in ranks]
    started_s = time.monotonic()
    for process in processes:
        process.leave()
    for process in processes:
        assert process.wait(15.0) == 0, process.stderr
        assert not any(noise in process.stderr for noise in NOISE), process.stderr
    assert time.monotonic() - started_s < 12.0


@pytest.mark.parametrize(
    ("transport", "how", "phase", "culprit", "size", "close"),
    [
        ("tcp", "kill", "forward", 2, 4, False),
        ("tcp", "kill", "backward", 0, 2, True),
        ("tcp", "stop", "forward", 1, 3, True),
        ("tcp", "exit", "forward", 1, 2, False),
        ("gloo-group", "kill", "backward", 2, 4, True),
        ("gloo-group", "stop", "forward", 1, 3, False),
    ],
)
def test_a_lost_rank_is_named_by_all_survivors(
    transport: str,
    how: str,
    phase: str,
    culprit: int,
    size: int,
    close: bool,
    fresh: Callable[[int], Group],
) -> None:
    """Killed, stopped for longer than the silence, or gone without a word; all can close."""
    group = fresh(size)
    started = group.start(
        train_until_failure,
        config=impatient(transport=transport),
        culprit=culprit,
        how=how,
        phase=phase,
        close=close,
    )
    if how != "stop":
        code = {"kill": -signal.SIGKILL, "exit": 3}[how]
        assert group.collect([started[culprit]], DEADLINE_S)[0].exit_code == code
    survivors = [rank for rank in range(size) if rank != culprit]
    outcomes = group.collect([started[rank] for rank in survivors], DEADLINE_S)
    check_survivors(outcomes, culprit, 8.0)
    for outcome in outcomes if close else ():
        assert outcome.value["left"] == []
        assert outcome.value["closing_s"] < 4.0
        # What a step that failed has left behind is no state to go on from.
        assert outcome.value["saved"] == outcome.value["message"]
    leave_promptly(group, survivors)


def test_a_static_graph_hears_of_a_loss_in_its_first_step(fresh: Callable[[int], Group]) -> None:
    # DDP looks at the futures of that step before anybody else can raise.
    group = fresh(2)
    started = group.start(
        train_until_failure,
        config=impatient(transport="tcp"),
        culprit=1,
        how="kill",
        at=0,
        static_graph=True,
    )
    survivor = group.collect(started, DEADLINE_S)[0]
    said = str(survivor.value if survivor.ok else survivor.error)
    assert "rank 1 is lost" in said, survivor.explain()


def test_a_rank_that_gives_up_is_named(fresh: Callable[[int], Group]) -> None:
    group = fresh(2)
    config = impatient(transport="gloo-group")
    started = group.start(train_until_failure, config=config, culprit=1, how="raise")
    culprit = group.collect(started[1:], DEADLINE_S)[0]
    assert culprit.error["type"] == "ZeroDivisionError"
    started[1].leave()
    assert started[1].wait(15.0) == 0
    check_survivors(group.collect(started[:1], DEADLINE_S), 1, 15.0)
    leave_promptly(group, [0])


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_closed_handle_ends_the_wait_of_the_others(
    transport: str, fresh: Callable[[int], Group]
) -> None:
    """The culprit's process lives on, so nothing but its goodbye tells that it left."""
    config = impatient(transport=transport, deadline_s=3.0)
    outcomes = fresh(3).outcomes(train_and_raise, config=config, culprit=2)
    assert outcomes[2].error["type"] == "ZeroDivisionError"
    for outcome in outcomes[:2]:
        assert outcome.error["type"] == "PeerLost", outcome.explain()
        assert outcome.error["rank"] == 2
        assert outcome.seconds < 15.0


@pytest.mark.parametrize(
    ("transport", "keep", "destroy"),
    [
        ("tcp", False, False),
        ("tcp", True, True),
        ("gloo-group", True, False),
    ],
)
def test_a_forgotten_handle_does_not_keep_the_process(
    transport: str, keep: bool, destroy: bool, fresh: Callable[[int], Group]
) -> None:
    group = fresh(2)
    steps = group.run(
        train_and_forget_to_close,
        config=impatient(transport=transport),
        keep=keep,
        destroy=destroy,
    )
    assert steps == [3, 3]
    leave_promptly(group, [0, 1])


def test_an_error_that_nobody_catches_ends_all_processes(fresh: Callable[[int], Group]) -> None:
    group = fresh(2)
    for process in group.processes:
        process.call(
            train_and_raise,
            {"config": impatient(), "culprit": 1},
            uncaught=True,
        )
    assert [process.wait(15.0) for process in group.processes] == [1, 1]
    texts = [process.stderr for process in group.processes]
    assert not any(noise in text for noise in NOISE for text in texts), texts
    assert "PeerLost: rank 1" in texts[0]
    assert "ZeroDivisionError" in texts[1]


def test_training_after_close_is_refused(two: Group) -> None:
    two.refused(train_after_close, "StateError", config=impatient())


@pytest.mark.parametrize("transport", ON_HOST)
def test_nothing_is_left_behind(transport: str, fresh: Callable[[int], Group]) -> None:
    group = fresh(2)
    config = impatient(transport=transport)
    group.run(train_uncollected, config=config)
    before = group.run(resources)
    for _ in range(3):
        for left in group.run(train_uncollected, config=config):
            assert left == []
    after = group.run(resources)
    for first, last in zip(before, after, strict=True):
        assert last["ours"] == 0
        assert last["threads"] <= first["threads"] + 1
        assert last["files"] <= first["files"] + 2


def test_a_model_that_is_dropped_is_freed(two: Group) -> None:
    assert two.run(train_and_drop_the_model, config=impatient()) == [True, True]


def test_training_goes_on_among_strangers(fresh: Callable[[int], Group]) -> None:
    wire = list(random.Random(3).randbytes(500))
    group, config = fresh(2), impatient(transport="tcp")
    results = group.run(train_among_strangers, config=config, wire=wire, steps=20)
    plain = group.run(train, config=config, steps=20)
    assert same([r["parameters"] for r in results]) == same([r["parameters"] for r in plain])
    refused = results[0]["logged"]
    assert len(refused) == 2  # by the control channel, and by the transport
    for said in refused:
        assert said.startswith("compressa.transports.handshake: rank 0 refused a connection from ")
    assert results[1]["logged"] == []  # nobody has to be let in there
    assert all(result["visits"] >= 20 for result in results)
