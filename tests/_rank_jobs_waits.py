"""Jobs in which ranks wait for each other in vain, or for longer than is usual."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import signal
import subprocess
import time
import zlib
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs import _optimizer, digest, registered
from _rank_jobs_state import _steps
from _rank_models import build, loss_of
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.config import load_config
from compressa.engine.control import long_waits
from compressa.engine.control.waits import Doing
from compressa.engine.start import process_groups, startup
from compressa.transports.base import Key
from compressa.transports.gloo import GlooTransport
from compressa.transports.settings import Settings


def _seen(error: BaseException | None, began_s: float) -> dict[str, Any]:
    if error is None:
        return {"type": "", "message": "", "ranks": [], "seconds": time.monotonic() - began_s}
    own = getattr(error, "rank", None)
    ranks = [own] if own is not None else sorted(getattr(error, "ranks", ()))
    seconds = time.monotonic() - began_s
    kind = type(error).__name__
    return {"type": kind, "message": str(error), "ranks": ranks, "seconds": seconds}


def wait_in_a_chain(*, config: Any, chain: list[int]) -> dict[str, Any]:
    """Each rank of a chain waits for the next one, in a call that the next does not make.

    The last one is elsewhere; unless it is the first one, too: then it is a cycle.
    """
    rank = dist.get_rank()
    settings, world = load_config(config), dist.group.WORLD
    assert world is not None
    groups = [process_groups.new_group(settings, world, "gloo", "a test")]
    control = startup.open_control(settings, groups[0])
    control.describe(Doing("elsewhere").activity)
    follows = dict(itertools.pairwise(chain))
    began_s, error = time.monotonic(), None
    if rank in follows:
        try:
            purpose = f"the call of {rank}"
            control.exchange({}, {follows[rank]: 1}, purpose).wait(config["exchange"]["deadline_s"])
        except compressa.TransportError as caught:
            error = control.verdict(caught)
    else:
        while error is None and time.monotonic() < began_s + 20.0:
            time.sleep(0.02)
            try:
                control.look("nothing")
            except compressa.TransportError as caught:
                error = caught
    seen = _seen(error, began_s)
    control.close(2.0)
    process_groups.release_groups(groups)
    return seen


def open_late(*, config: Any, culprit: int, seconds: float) -> dict[str, Any]:
    """Register; one rank opens its transport once all others have given up. What each saw."""
    real, own = startup.open_transport, dist.get_rank()

    def late(*arguments: Any, **named: Any) -> Any:
        if own == culprit:
            time.sleep(seconds)
        return real(*arguments, **named)

    began_s, error = time.monotonic(), None
    with mock.patch.object(startup, "open_transport", late):
        try:
            with registered("mlp", config):
                pass
        except compressa.CompressaError as caught:
            error = caught
    return _seen(error, began_s)


def be_late_for_a_step(*, config: Any, culprit: int, how: str, seconds: float) -> dict[str, Any]:
    """Train; one rank does not come to a step for a while. Return what all raise, if they do."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    handler = _Logged()
    logging.getLogger("compressa").addHandler(handler)
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        _steps(wrapped, optimizer, 0, 2)
        began_s, error = time.monotonic(), None
        if rank == culprit:
            _stay_away(how, seconds)
        try:
            _steps(wrapped, optimizer, 2, 3)
        except compressa.CompressaError as caught:
            error = caught
        seen = _seen(error, began_s) | {"parameters": digest(net), "step": handle.next_step}
        again = None
        try:
            if error is not None:
                loss_of(wrapped, rank, 5, torch.float32).backward()
        except compressa.CompressaError as caught:
            again = str(caught)
    logging.getLogger("compressa").removeHandler(handler)
    return seen | {"again": again, "logged": handler.texts}


class _Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.name}: {record.getMessage()}")


def _stay_away(how: str, seconds: float) -> None:
    """Sleep; stop, until a process of its own continues it; or hold the interpreter's lock."""
    if how == "sleep":
        time.sleep(seconds)
    elif how == "stop":
        awake = f"sleep {seconds}; kill -CONT {os.getpid()}"
        helper = subprocess.Popen(["sh", "-c", awake])
        os.kill(os.getpid(), signal.SIGSTOP)
        helper.wait()
    else:
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))  # which does not let go of it


def call_alone(*, config: Any, folder: str, call: str, others: str) -> dict[str, Any]:
    """Rank 0 makes a collective call alone, which ends; then all train, and make it together.

    Args:
        config: The configuration.
        folder: For checkpoints.
        call: Of the handle: "save", "load" or "switch".
        others: What other ranks do meanwhile: "sleep", "step", or another call.
    """
    rank = dist.get_rank()
    net = build("mlp", rank)
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        _steps(wrapped, optimizer, 0, 2)
        handle.save(folder)
        dist.barrier()
        began_s, error = time.monotonic(), None
        if rank and others == "sleep":
            time.sleep(config["exchange"]["deadline_s"] + 1.0)
        elif rank == 0 or others not in ("sleep", "step"):
            try:
                _make(handle, call if rank == 0 else others, folder)
            except compressa.CompressaError as caught:
                error = caught
        else:
            time.sleep(0.5)  # so that their deadline comes later
        seen = _seen(error, began_s)
        _steps(wrapped, optimizer, 2, 1)
        for _ in range(2):
            _make(handle, call, folder)
        _steps(wrapped, optimizer, handle.next_step, 3)
        left = len(_early(handle, call))
        return seen | {"parameters": digest(net), "left": left}


def _early(handle: compressa.Handle, call: str) -> list[Any]:
    """Messages of a call in the control channel's inboxes that nobody has taken."""
    control = handle.engine.session.control
    assert control is not None
    unit = zlib.crc32(f"handle.{call}".encode())
    inboxes = control._transport.inboxes.values()
    return [key for inbox in inboxes for key in inbox._messages if key.unit == unit]


def _make(handle: compressa.Handle, call: str, folder: str) -> None:
    if call == "switch":
        handle.switch({**_as_it_is(handle), "compressor": {"name": "int8"}})
    else:
        getattr(handle, call)(folder)


def _as_it_is(handle: compressa.Handle) -> dict[str, Any]:
    return dict(handle.config.model_dump(exclude_unset=True))


def broadcast_alone(*, config: Any) -> dict[str, Any]:
    """Rank 0 broadcasts alone; then all do, and train."""
    rank = dist.get_rank()
    values, error, began_s = torch.full((1000,), float(rank)), None, time.monotonic()
    if rank == 0:
        try:
            compressa.broadcast(values, config=config)
        except compressa.CompressaError as caught:
            error = caught
    else:
        time.sleep(config["exchange"]["deadline_s"] + 0.5)
    seen = _seen(error, began_s)
    compressa.broadcast(values, sources=[1], config=config)
    with registered("mlp", config) as (wrapped, _):
        loss_of(wrapped, rank, 0, torch.float32).backward()
    dist.new_group(list(range(dist.get_world_size())))
    return seen | {"value": values.unique().tolist()}


def reform_alone(*, config: Any) -> dict[str, Any]:
    """Rank 0 reforms alone, in vain, and the others train; then all reform, and train."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net = build("mlp", rank)
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        _steps(wrapped, optimizer, 0, 2)
        dist.barrier()
        began_s, error = time.monotonic(), None
        try:
            if rank == 0:
                handle.reform(range(size))
            else:
                _steps(wrapped, optimizer, 2, 1)
        except compressa.CompressaError as caught:
            error = caught
        seen = _seen(error, began_s)
        if rank:
            time.sleep(config["exchange"]["start_s"] + 1.0)  # by then rank 0 has given up
        source = handle.reform(range(size))
        _steps(wrapped, optimizer, handle.next_step, 2)
        return seen | {"parameters": digest(net), "source": source, "step": handle.next_step}


def train_on_a_slow_link(*, config: Any, steps: int) -> dict[str, Any]:
    """Train a model whose gradients take the link for longer than a peer may be silent."""
    rank = dist.get_rank()
    net = torch.nn.Linear(500, 500)
    wrapped = DistributedDataParallel(net, init_sync=False)
    handle = compressa.register_comm_hook(wrapped, config)
    began_s, error = time.monotonic(), None
    try:
        for step in range(steps):
            torch.manual_seed(10 * step + rank)
            wrapped(torch.randn(4, 500)).square().sum().backward()
    except compressa.CompressaError as caught:
        error = caught
    seen = _seen(error, began_s)
    handle.close()
    return seen


def send_to_a_stopped_peer(*, silence_s: float, heartbeat_s: float) -> list[float]:
    """Rank 1 stops while rank 0 sends it much; return when rank 0 notices, in seconds from then."""
    noticed: list[float] = []
    group = dist.new_group()
    settings = Settings(7, 1 << 16, 1 << 18, silence_s, heartbeat_s)
    transport = GlooTransport(
        group, settings, 1 << 20, lambda error: noticed.append(time.monotonic())
    )
    dist.barrier()
    began_s = time.monotonic()
    if dist.get_rank():
        _stay_away("stop", 3 * silence_s)
        return []
    time.sleep(0.2)
    transport.send(1, Key(0, 0, 0), torch.zeros(1 << 24, dtype=torch.uint8), 0, lambda: None)
    while not noticed and time.monotonic() < began_s + 3 * silence_s:
        time.sleep(0.01)
    return [seen_s - began_s for seen_s in noticed]


def wait_for_an_evaluation(*, config: Any, seconds: float) -> dict[str, Any]:
    """Rank 0 evaluates alone for a while, and the others wait for it in backward."""
    with mock.patch.object(long_waits, "LONG_S", 1.0):
        return be_late_for_a_step(config=config, culprit=0, how="sleep", seconds=seconds)


def wait_in_vain_for_each_other(*, config: Any, folder: str) -> dict[str, Any]:
    """Rank 0 saves alone, and the others train: long before its deadline, it gives up."""
    with (
        mock.patch.object(long_waits, "LONG_S", 1.0),
        mock.patch.object(long_waits, "_AGAIN_S", 1.0),
    ):
        return call_alone(config=config, folder=folder, call="save", others="step")
