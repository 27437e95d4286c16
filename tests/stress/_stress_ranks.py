"""Ranks that train while faults of a schedule happen to them; see `stress`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _mass import Balance, check_state, gradients
from _rank_strikes import in_encode, in_exchange, in_registration, on_frames, on_payloads
from _stress_faults import Run, descend, frame_is_due, payload_is_due, seeing, train_a_part
from _stress_schedules import LONE, STEPS, Fault
from _training import alive_threads, digest, state_digest
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.engine.start import process_groups
from compressa.transports import mpi_process

_CLONE_NEWNET = 0x40000000
_SETTLE_S = 3.0  # after the deadline: Gloo's calls end half a second later, who was away is back
_HEAD_START_S = 2.0  # of who makes a call alone, so that its deadline comes before the others'


def enter_network(*, pid: int, interface: str) -> None:
    """Move to the network namespace of another process; before any thread is made."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.setns(fd, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    os.environ["GLOO_SOCKET_IFNAME"] = interface


_runs: list[Run] = []


def begin(*, config: Any, faults: Sequence[Mapping[str, Any]], folder: str) -> dict[str, Any]:
    """Register; return what this rank saw."""
    dist.all_reduce(torch.zeros(1))  # the user's own group is connected now
    if config["exchange"]["transport"] == "mpi":
        mpi_process.load(dist.get_world_size())
    known = [Fault(**fault) for fault in faults]
    parts = {i: _make_part(f) for i, f in enumerate(known) if f.kind == "part"}
    world = list(range(dist.get_world_size()))
    run = Run(config, known, Path(folder), world, parts, open_things())
    _runs[:] = [run]
    with contextlib.ExitStack() as stack:
        for fault in known:
            if fault.moment == "registration":
                arm = in_registration(fault.detail, lambda: run.strike("registration"))
                stack.enter_context(arm)
        run.stack.enter_context(on_frames(lambda frame, data: frame_is_due(run, frame, data)))
        run.wrapped = DistributedDataParallel(run.net, init_sync=False)
        seen = seeing(run.world, lambda: _register(run))
    run.stack.enter_context(in_encode(0, lambda: run.strike("encode")))
    run.stack.enter_context(in_exchange(0, lambda: run.strike("exchange")))
    run.stack.enter_context(on_payloads(lambda step: payload_is_due(run, step)))
    return seen


def _make_part(fault: Fault) -> tuple[list[int], dist.ProcessGroup]:
    """Make a group of the fault's rank and the next one."""
    size = dist.get_world_size()
    ranks = sorted({fault.rank, (fault.rank + 1) % size})
    group = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        dist.all_reduce(torch.zeros(1), group=group)
    return ranks, group


def _register(run: Run) -> None:
    run.handle = compressa.register_comm_hook(run.wrapped, run.config)
    run.balance = Balance(run.handle)
    run.handle.save(run.folder / "first")
    _remember(run)


def train() -> dict[str, Any]:
    """Train up to the last step or an error; return what this rank saw."""
    run = _runs[0]
    run.digests.clear()
    return seeing(run.world, lambda: _train(run)) | {"digests": run.digests}


def _train(run: Run) -> None:
    for step in range(run.handle.next_step, STEPS):
        run.step = step
        run.net.zero_grad()
        vectors = gradients(dist.get_rank(), step)
        loss = run.wrapped(*vectors)
        _between(run)
        loss.backward()
        run.balance.give(vectors)
        run.balance.get(run.net)
        descend(run.net)
        run.digests[step] = digest(run.net)
        _remember(run)


def _remember(run: Run) -> None:
    """Keep the state before the next step, and before the one that has just ended."""
    step, state = run.handle.next_step, run.handle.state_dict()
    run.before = {s: run.before[s] for s in run.before if s == step - 1}
    run.before[step] = {key: vector.clone() for key, vector in state.items()}


def _between(run: Run) -> None:
    """What happens between forward and backward: what a part does, and this rank's own faults."""
    rank, now = dist.get_rank(), [f for f in run.faults if f.step == run.step]
    done = {int(path.name) for path in run.folder.iterdir() if path.name.isdecimal()}
    for number, (ranks, group) in run.parts.items():
        due = run.faults[number].step == run.step and number not in done
        if due and rank in ranks and set(ranks) <= set(run.world):
            train_a_part(run, number, group)
    lone = {f.rank for f in now if f.kind in LONE and f.rank in run.world}
    if lone and rank not in lone:
        time.sleep(_HEAD_START_S)
    run.strike("between")


def reform(*, ranks: list[int]) -> dict[str, Any]:
    """Go on with these ranks; return what this rank saw."""
    run = _runs[0]
    run.strike("reform")
    run.world = ranks
    return seeing(run.world, lambda: _reform(run))


def _reform(run: Run) -> None:
    size = run.handle.engine.transport.size
    source = run.handle.reform(run.world)
    group = run.wrapped.process_group
    if source is not None:
        compressa.broadcast(run.net, group=group, sources=[source])
    before = run.before.get(run.handle.next_step)
    if before is not None:  # whose engine failed as soon as a step was over knows no state of it
        check_state(before, run.handle, len(run.world) / size)
    run.balance = Balance(run.handle, group)
    _remember(run)


def finish() -> dict[str, Any]:
    """Return what the survivors have come to."""
    run = _runs[0]
    run.strike("finish")
    return {
        "errors": run.balance.errors(run.handle),
        "parameters": digest(run.net),
        "calls": run.calls,
        "steps": run.handle.next_step,
    }


def save_and_load() -> None:
    """What failed when one called it alone works when all do."""
    run = _runs[0]
    state = state_digest(run.handle)
    run.handle.save(run.folder / "last")
    run.handle.load(run.folder / "last")
    assert state_digest(run.handle) == state


def close() -> dict[str, Any]:
    """Close; return what is left."""
    run = _runs.pop()
    run.strike("close")
    run.stack.close()
    started_s = time.monotonic()
    if run.handle is not None:
        run.handle.close()
    closing_s = time.monotonic() - started_s
    for child in run.children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    before, model = run.opened, weakref.ref(run.wrapped)
    settle_s = run.config["exchange"]["deadline_s"] + _SETTLE_S
    del run
    return {"closing_s": closing_s, "left": _left(before, model, settle_s)}


def open_things() -> dict[str, int]:
    """Count sockets, other files, threads and children of this process."""
    sockets = files = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            to_socket = os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
            sockets, files = sockets + to_socket, files + (not to_socket)
    threads, children = _threads_and_children()
    return {"sockets": sockets, "files": files, "threads": threads, "children": children}


def _threads_and_children() -> tuple[int, int]:
    """Count both at one moment: the children of a thread that ends pass to another one."""
    while True:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one ended meanwhile
            tasks = list(Path("/proc/self/task").iterdir())
            return len(tasks), sum(len((task / "children").read_text().split()) for task in tasks)


def _left(
    before: dict[str, int], model: weakref.ref[DistributedDataParallel], settle_s: float
) -> dict[str, Any]:
    """Return what is more than before, once it has had a moment to end; nothing if nothing is."""
    end_s = time.monotonic() + settle_s
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
