"""Jobs in which something goes wrong: bad input, and ranks that die, stop or give up."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs import _optimizer, _stores, alive_threads, digest, lasting_threads, registered
from _rank_models import build, loss_of
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.transports.handshake import Entrance

_kept: list[Any] = []


def register(
    *,
    config: Any,
    model: str = "mlp",
    mutation: str | None = None,
    ddp: Mapping[str, Any] | None = None,
) -> list[str]:
    """Register and close."""
    with registered(model, config, mutation=mutation, ddp=ddp):
        pass
    return lasting_threads()  # those of a registration that has failed end by themselves


def train_uncollected(*, config: Any) -> list[str]:
    """Train a step and close, without a garbage collector that would break cycles."""
    gc.disable()
    try:
        with registered("mlp", config) as (wrapped, _):
            loss_of(wrapped, dist.get_rank(), 0, torch.float32).backward()
        return alive_threads()
    finally:
        gc.enable()


def register_twice(*, config: Any) -> dict[str, Any]:
    """Register a second time; the first registration must go on working."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        error = ""
        try:
            compressa.register_comm_hook(wrapped, config)
        except compressa.StateError as caught:
            error = str(caught)
        optimizer = _optimizer(net)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
            optimizer.step()
        return {"error": error, "parameters": digest(net)}


def register_after_another_hook(*, config: Any) -> None:
    """Register on a model that has a hook of somebody else."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = DistributedDataParallel(build("mlp", dist.get_rank()))
    wrapped.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
    compressa.register_comm_hook(wrapped, config)


def register_unwrapped(*, config: Any) -> None:
    """Register on a model that nobody wrapped."""
    compressa.register_comm_hook(build("mlp", 0), config)  # type: ignore[arg-type]


def misbehave(how: str) -> None:
    """Die, stop, give up, or leave."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "raise":
        raise ZeroDivisionError("the user's training loop has a bug")
    if how == "exit":
        os._exit(3)


def train_until_failure(
    *,
    config: Any,
    culprit: int,
    how: str,
    at: int = 3,
    phase: str = "forward",
    close: bool = False,
    static_graph: bool = False,
) -> dict[str, Any]:
    """Train; the culprit misbehaves in one step. Others return the error that they saw.

    With `phase` "backward", it happens inside the backward pass, when some buckets are under
    way. With `close`, they ask for their state, close their handles, and say what is left.
    """
    rank = dist.get_rank()
    net = build("mlp", rank)
    wrapped = DistributedDataParallel(net, bucket_cap_mb=0.005, static_graph=static_graph)
    handle = compressa.register_comm_hook(wrapped, config)
    _kept.append(handle)
    optimizer = _optimizer(net)
    step = 0

    def in_backward(gradient: torch.Tensor) -> None:
        if step == at and rank == culprit and phase == "backward":
            misbehave(how)

    net[2].weight.register_hook(in_backward)  # type: ignore[index,union-attr]
    while True:
        if step == at and rank == culprit and phase == "forward":
            misbehave(how)
        started_s = time.monotonic()
        try:
            optimizer.zero_grad()
            loss_of(wrapped, rank, step, torch.float32).backward()
        except compressa.CompressaError as error:
            report = _report(error, step, time.monotonic() - started_s, wrapped, rank)
            return report | (_close(handle) if close else {})
        optimizer.step()
        step += 1


def _close(handle: compressa.Handle) -> dict[str, Any]:
    saved = ""
    try:
        handle.state_dict()
    except compressa.CompressaError as error:
        saved = str(error)
    started_s = time.monotonic()
    handle.close()
    handle.close()
    closing_s = time.monotonic() - started_s
    while alive_threads() and time.monotonic() < started_s + closing_s + 2.0:
        time.sleep(0.01)  # a worker may have been in the middle of something
    return {"closing_s": closing_s, "left": alive_threads(), "saved": saved}


def _report(
    error: compressa.CompressaError,
    step: int,
    seconds: float,
    wrapped: DistributedDataParallel,
    rank: int,
) -> dict[str, Any]:
    again = ""
    try:
        loss_of(wrapped, rank, step + 1, torch.float32).backward()
    except compressa.CompressaError as second:
        again = str(second)
    except RuntimeError as second:
        again = f"RuntimeError: {second}"
    return {
        "type": type(error).__name__,
        "message": str(error),
        "rank": getattr(error, "rank", None),
        "step": step,
        "seconds": seconds,
        "again": again,
    }


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


def train_with(*, config: Any, mutation: str, steps: int = 4) -> dict[str, Any]:
    """Train with a fault inside the library; raises what the user would see."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    with registered(net, config, mutation=mutation) as (wrapped, _):
        optimizer = _optimizer(net)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(wrapped, rank, step, torch.float32).backward()
            optimizer.step()
    return {"parameters": digest(net)}


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


def register_alone(*, config: Any) -> None:
    """Register while the other ranks do not; DDP itself is told to compare nothing."""
    wrapped = DistributedDataParallel(build("mlp", 0), init_sync=False)
    compressa.register_comm_hook(wrapped, config)


def train_among_strangers(*, config: Any, wire: list[int], steps: int = 20) -> dict[str, Any]:
    """Train while strangers connect to wherever this process listens, and send some bytes.

    They come to the transport's door before the ranks do, and to what is open afterwards, but for
    the store of torch's launcher, in every step.
    """
    rank, data = dist.get_rank(), bytes(wire)
    strangers: list[socket.socket] = []
    logged: list[str] = []
    wait = Entrance.wait

    def besieged(self: Entrance, *arguments: Any) -> None:
        strangers.append(_visit(self._listener.getsockname(), data))
        wait(self, *arguments)

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(f"{record.name}: {record.getMessage()}")

    logger, listener = logging.getLogger("compressa"), Listener()
    logger.addHandler(listener)
    net = build("mlp", rank)
    try:
        with mock.patch.object(Entrance, "wait", besieged), registered(net, config) as (model, _):
            seats = [seat for seat in listening() if seat[1] not in [s.port for s in _stores]]
            optimizer = _optimizer(net)
            for step in range(steps):
                strangers += [_visit(seat, data) for seat in seats]
                optimizer.zero_grad()
                loss_of(model, rank, step, torch.float32).backward()
                optimizer.step()
    finally:
        logger.removeHandler(listener)
        for stranger in strangers:
            stranger.close()
    return {"parameters": digest(net), "logged": logged, "visits": len(strangers)}


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
