"""Training in which a rank fails: bad input, and ranks that die, stop or give up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from _rank_models import build, loss_of
from _training import _optimizer, digest, lasting_threads, registered, run_steps
from torch.nn.parallel import DistributedDataParallel

import compressa

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

    net[2].weight.register_hook(in_backward)
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
    left = lasting_threads(2.0)  # a worker may have been in the middle of something
    return {"closing_s": closing_s, "left": left, "saved": saved}


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


def train_with(*, config: Any, mutation: str, steps: int = 4) -> dict[str, Any]:
    """Train with a fault inside the library; raises what the user would see."""
    net = build("mlp", dist.get_rank())
    with registered(net, config, mutation=mutation) as (wrapped, _):
        run_steps(wrapped, _optimizer(net), 0, steps)
    return {"parameters": digest(net)}
