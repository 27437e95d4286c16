"""One fault in one rank, and what the others see of it; see `stress`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs import _optimizer, _stores, alive_threads
from _rank_models import build, loss_of
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.aggregators.scopes import ScopePayload
from compressa.collectives.base import Operation
from compressa.engine import process_groups, startup
from compressa.engine.driver import Driver, Task
from compressa.engine.unit_runtime import UnitRuntime
from compressa.hooks import register
from compressa.transports import frames, mpi_process

_CLONE_NEWNET = 0x40000000
_SETTLE_S = 5.0  # Gloo's calls under way end at their own deadline, half a second after ours
_LAST_STEP = 400

Strike = Callable[[], None]


def enter_network(*, pid: int, interface: str) -> None:
    """Move to the network namespace of another process; before any thread is made."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.setns(fd, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def host_store_at(*, address: str) -> int:
    """On rank 0: open the rendezvous store on one of its addresses; return the port."""
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    return store.port


def join_at(*, rank: int, size: int, address: str, port: int) -> None:
    """Join the default process group over a network."""
    torch.set_num_threads(1)
    store = _stores[0] if rank == 0 else dist.TCPStore(address, port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )


def suffer(
    *,
    config: Any,
    kind: str,
    moment: str,
    culprit: int,
    step: int,
    late_s: float,
    mark: str,
) -> dict[str, Any]:
    """Train until one rank has its fault; return what this rank saw, and what is left of it.

    Args:
        config: The configuration.
        kind: What happens: "kill", "link", "late", "size" or "header".
        moment: When: "registration", "encode", "exchange", "between" or "close".
        culprit: Whom it happens to.
        step: In which step.
        late_s: How long a late rank is away.
        mark: File to which the culprit writes when it happened, on `time.monotonic`.
    """
    rank = dist.get_rank()
    dist.all_reduce(torch.zeros(1))  # the user's own group is connected now
    if config["exchange"]["transport"] == "mpi":
        mpi_process.load(dist.get_world_size())
    before = open_things()
    net = build("mlp", rank)

    def strike() -> None:
        _strike(kind, late_s, Path(mark))

    seen: dict[str, Any] = {"type": "", "message": "", "ranks": []}
    handle = None
    wrapped = DistributedDataParallel(net, bucket_cap_mb=0.005, init_sync=False)
    with _armed(kind, moment, step, strike) if rank == culprit else contextlib.nullcontext():
        try:
            handle = compressa.register_comm_hook(wrapped, config)
            steps = step if moment == "close" else _LAST_STEP
            _train(wrapped, net, rank, steps, strike if _in_loop(rank, culprit, moment) else None)
        except compressa.CompressaError as error:
            seen = _told(error)
        seen["at_s"] = time.monotonic()
        if moment == "close" and rank == culprit:
            strike()
        started_s = time.monotonic()
        if handle is not None:
            handle.close()
    seen["closing_s"] = time.monotonic() - started_s
    seen["step"] = handle.next_step if handle is not None else -1
    model = weakref.ref(wrapped)
    del handle, wrapped
    return seen | {"left": _left(before, model)}


def _in_loop(rank: int, culprit: int, moment: str) -> bool:
    return rank == culprit and moment == "between"


def _train(
    wrapped: DistributedDataParallel,
    net: torch.nn.Module,
    rank: int,
    steps: int,
    strike: Strike | None,
) -> None:
    optimizer = _optimizer(net)
    for number in range(steps):
        if strike is not None and number == 2:
            strike()
        optimizer.zero_grad()
        loss_of(wrapped, rank, number, torch.float32).backward()
        optimizer.step()
    assert steps < _LAST_STEP, "the fault was not seen"


def _told(error: compressa.CompressaError) -> dict[str, Any]:
    own = getattr(error, "rank", None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "ranks": [own] if own is not None else list(getattr(error, "ranks", ())),
    }


def _strike(kind: str, late_s: float, mark: Path) -> None:
    """Have the fault happen now; once."""
    if mark.exists():
        return
    mark.write_text(repr(time.monotonic()))
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "link":
        interface = os.environ["GLOO_SOCKET_IFNAME"]
        subprocess.run(["ip", "link", "set", "dev", interface, "down"], check=True)
    elif kind == "late":
        time.sleep(late_s)


@contextlib.contextmanager
def _armed(kind: str, moment: str, step: int, strike: Strike) -> Iterator[None]:
    """Have the fault happen at its moment."""
    patched = {
        "size": _another_size,
        "header": _corrupted_header,
        "encode": _in_encode,
        "exchange": _in_exchange,
        "registration": _in_registration,
    }
    wanted = kind if kind in ("size", "header") else moment
    if wanted not in patched:
        yield
        return
    if kind == "header" and moment == "registration":
        step = -1
    with patched[wanted](step, strike):
        yield


@contextlib.contextmanager
def _in_encode(step: int, strike: Strike) -> Iterator[None]:
    """On a worker thread, before a unit of the step is encoded."""
    collect, calls = UnitRuntime.collect, itertools.count()

    def broken(self: UnitRuntime, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        if next(calls) >= 3 * step:
            strike()
        return collect(self, gradients)

    with mock.patch.object(UnitRuntime, "collect", broken):
        yield


@contextlib.contextmanager
def _in_exchange(step: int, strike: Strike) -> Iterator[None]:
    """On the communication thread, when the first messages of the step have been handed over."""
    launch = Driver._launch

    def broken(self: Driver, task: Task, operation: Operation) -> None:
        launch(self, task, operation)
        if task.step >= step:
            strike()

    with mock.patch.object(Driver, "_launch", broken):
        yield


@contextlib.contextmanager
def _in_registration(step: int, strike: Strike) -> Iterator[None]:
    """Before it, or in the middle; which of them, the step settles."""
    targets: list[tuple[Any, str]] = [
        (register, "_check_model"),
        (startup, "agree"),
        (startup, "open_transport"),
        (process_groups, "new_group"),
    ]
    owner, name = targets[step % len(targets)]
    real = getattr(owner, name)

    def broken(*arguments: Any, **named: Any) -> Any:
        strike()
        return real(*arguments, **named)

    with mock.patch.object(owner, name, broken):
        yield


@contextlib.contextmanager
def _another_size(step: int, strike: Strike) -> Iterator[None]:
    """A payload of the step is longer or shorter than it should be."""
    seal = ScopePayload.seal

    def broken(self: ScopePayload, payload: torch.Tensor, turn: Any, body: int) -> torch.Tensor:
        filled = seal(self, payload, turn, body)
        if turn.step < step:
            return filled
        strike()
        return filled[:-1] if step % 2 else torch.cat([filled, filled[:1]])

    with mock.patch.object(ScopePayload, "seal", broken):
        yield


@contextlib.contextmanager
def _corrupted_header(step: int, strike: Strike) -> Iterator[None]:
    """One bit of a frame's header is another; of the control channel's at registration."""
    write = frames.Frame.write

    def broken(self: frames.Frame, buffer: Any) -> None:
        write(self, buffer)
        control = self.epoch == 0
        due = control if step < 0 else not control and self.key.step >= step
        if due and self.kind is frames.Kind.DATA and not struck:
            struck.append(True)
            strike()
            bit = 8 * [0, 2, 4, 20][step % 4] + 3
            buffer[bit // 8] ^= 1 << bit % 8

    struck: list[bool] = []
    with mock.patch.object(frames.Frame, "write", broken):
        yield


def open_things() -> dict[str, int]:
    """Count sockets, other files and threads of this process."""
    sockets = files = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            to_socket = os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
            sockets, files = sockets + to_socket, files + (not to_socket)
    threads = len(os.listdir("/proc/self/task"))
    return {"sockets": sockets, "files": files, "threads": threads}


def _left(before: dict[str, int], model: weakref.ref[DistributedDataParallel]) -> dict[str, Any]:
    """Return what is more than before, once it has had a moment to end; nothing if nothing is."""
    end_s = time.monotonic() + _SETTLE_S
    while True:
        gc.collect()
        process_groups._bury_retired()
        now = open_things()
        left: dict[str, Any] = {k: now[k] - before[k] for k in now if now[k] > before[k]}
        if alive_threads():
            left["alive"] = alive_threads()
        if model() is not None:
            left["model"] = "which nobody holds, but no collector finds"
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.05)
