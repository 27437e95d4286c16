"""Jobs in which what travels between two ranks is changed on the way."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import resource
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from _proxy import Change, between
from _rank_jobs import _optimizer, digest, registered
from _rank_models import build, loss_of
from compressa.kernels.checksums import checksum, checksum_of_memory
from torch.nn.parallel import DistributedDataParallel

import compressa
from benchmarks.frames import measured
from compressa.transports import frames
from compressa.transports.frames import Frame

_STEP = struct.Struct("<I")
_STEP_AT = 8


def _intact(header: bytes, data: bytes) -> bytes:
    return header + data


def _flipped(header: bytes, data: bytes) -> bytes:
    """One bit of the middle of the data is another."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    return header + changed


def _half(header: bytes, data: bytes) -> bytes:
    """The second half of the frame is inverted."""
    whole = bytearray(header + data)
    middle = len(whole) // 2
    whole[middle:] = bytes(byte ^ 0xFF for byte in whole[middle:])
    return bytes(whole)


CHANGES: dict[str, Change] = {"flip": _flipped, "half": _half}


def _once(change: Change, step: int) -> Change:
    """Change the first frame of a step, and nothing else."""
    left = [change]

    def changed(header: bytes, data: bytes) -> bytes:
        due = _STEP.unpack_from(header, _STEP_AT)[0] >= step and len(data) > 0
        return left.pop()(header, data) if left and due else header + data

    return changed


@contextlib.contextmanager
def _proxied(change: Change) -> Iterator[None]:
    """Rank 1 calls rank 0 through a proxy that changes what comes from rank 0."""
    with between(_intact, change) if dist.get_rank() == 1 else contextlib.nullcontext():
        yield


def _trained(config: Any, steps: int) -> dict[str, Any]:
    """Train up to an error; return it, and what the replica ended with."""
    rank, net = dist.get_rank(), build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        optimizer = _optimizer(net)
        started_s = time.monotonic()
        for step in range(steps):
            optimizer.zero_grad()
            try:
                loss_of(wrapped, rank, step, torch.float32).backward()
            except compressa.CompressaError as error:
                seconds = time.monotonic() - started_s
                return {
                    "type": type(error).__name__,
                    "message": str(error),
                    "step": step,
                    "seconds": seconds,
                    "parameters": digest(net),
                }
            optimizer.step()
    return {"type": "", "message": "", "step": steps, "parameters": digest(net)}


def train_over_a_bad_link(*, config: Any, how: str, at: int = 2, steps: int = 6) -> dict[str, Any]:
    """Train while a frame of one step is changed on its way from rank 0 to rank 1."""
    with _proxied(_once(CHANGES[how], at)):
        return _trained(config, steps)


def train_beside_a_child(
    *, config: Any, culprit: int, how: str = "kill", child_s: float = 6.0
) -> dict[str, Any]:
    """Train; the culprit forks a child that lives on, and is killed in a later step.

    With `how` "leave", the child ends at once instead, as a program does, and all train on.
    """
    rank, net = dist.get_rank(), build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        optimizer = _optimizer(net)
        for step in range(8):
            if rank == culprit and step == 3:
                _fork(child_s if how == "kill" else 0.0)
            if rank == culprit and step == 5 and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            started_s = time.monotonic()
            try:
                loss_of(wrapped, rank, step, torch.float32).backward()
            except compressa.CompressaError as error:
                seconds = time.monotonic() - started_s
                lost = getattr(error, "rank", None)
                return {"type": type(error).__name__, "lost": lost, "seconds": seconds}
            optimizer.step()
    return {"type": "", "parameters": digest(net)}


def _fork(lives_s: float) -> None:
    """Fork a child; the one that lives for no time runs what the interpreter runs at its end."""
    child = os.fork()
    if child:
        if not lives_s:
            assert os.waitpid(child, 0)[1] == 0
        return
    time.sleep(lives_s)
    if not lives_s:
        atexit._run_exitfuncs()
        gc.collect()
    os._exit(0)


def register_with_few_files(*, config: Any, culprits: list[int], spare: int) -> dict[str, Any]:
    """Register while the culprits may open so many more files; return the error, and the limit."""
    used = len(os.listdir("/proc/self/fd"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wrapped = DistributedDataParallel(build("mlp", 0))
    if dist.get_rank() in culprits:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, before[1]))
    started_s = time.monotonic()
    try:
        compressa.register_comm_hook(wrapped, config).close()
    except Exception as error:
        seconds = time.monotonic() - started_s
        return {
            "type": type(error).__name__,
            "message": str(error),
            "seconds": seconds,
            "limit": used + spare,
            "used": used,
        }
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return {"type": "", "used": used}


def count_files(*, config: Any) -> int:
    before = len(os.listdir("/proc/self/fd"))
    wrapped = DistributedDataParallel(build("mlp", 0))
    handle = compressa.register_comm_hook(wrapped, config)
    after = len(os.listdir("/proc/self/fd"))
    handle.close()
    return after - before


def _forged(header: bytes, data: bytes) -> bytes:
    """Another bit, and checksums that fit it: what somebody does who knows the format."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    front = header[:32] + checksum(np.frombuffer(changed, np.uint8)).to_bytes(8, "little")
    whole = checksum(np.frombuffer(bytearray(front), np.uint8)).to_bytes(8, "little")
    return front + whole + bytes(changed)


def _repeated(header: bytes, data: bytes) -> bytes:
    """The same frame once more."""
    return 2 * (header + data)


def _left_out(header: bytes, data: bytes) -> bytes:
    """Nothing, in the place of a frame."""
    return b""


CHANGES |= {"forge": _forged, "repeat": _repeated, "leave out": _left_out}


def train_with_a_secret(
    *,
    config: Any,
    folder: str,
    how: str = "",
    own: bool = False,
    mode: int = 0o600,
    steps: int = 6,
) -> dict[str, Any]:
    """As `train_over_a_bad_link`, with authenticated frames; `own`: rank 1's secret is another."""
    other = own and dist.get_rank() == 1
    home = Path(folder) / str(dist.get_rank())
    home.mkdir(exist_ok=True)
    path = home / "secret"
    path.write_bytes(b"another secret of some length" if other else 32 * b"s")
    path.chmod(mode)
    known = {**config["exchange"], "authenticate": True, "secret_file": "secret"}
    change = _once(CHANGES[how], 2) if how else _intact
    with contextlib.chdir(home), _proxied(change):
        try:
            return _trained({**config, "exchange": known}, steps)
        except compressa.CompressaError as error:  # at registration
            return {"type": type(error).__name__, "message": str(error), "step": -1}


def train_with_a_bad_sender(*, config: Any, steps: int = 6) -> dict[str, Any]:
    """Train while rank 0 sends one frame of step 2 whose data is not what its check is of."""
    write, left = Frame.write, [1]

    def broken(self: Frame, buffer: Any, data: memoryview, *check: Any) -> None:
        changed = bytearray(data)
        if self.epoch and self.key.step >= 2 and data and left:  # epoch 0 is the control channel's
            changed[left.pop()] ^= 1
        write(self, buffer, memoryview(changed), *check)

    with mock.patch.object(Frame, "write", broken if dist.get_rank() == 0 else write):
        return _trained(config, steps)


def cost_of_checks() -> tuple[float, float]:
    """Return the seconds of a step without checks, and how many times as long one with them is."""
    found = measured({}, "int8", pairs=2)
    assert frames.checksum_of_memory is checksum_of_memory, "frames are not checked any more"
    return found.off_s, found.ratio
