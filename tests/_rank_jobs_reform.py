"""Jobs in which survivors of a loss go on with the same model and handle."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import alive_threads, digest
from _rank_jobs_mass import Scales, gradients, residuals
from _rank_models import Linear
from _rank_strikes import in_encode, in_exchange
from torch.nn.parallel import DistributedDataParallel

import compressa

LR = 0.1
_MOMENTS = {"encode": in_encode, "exchange": in_exchange}


def go_on_without(
    *,
    config: Any,
    culprits: list[int],
    moment: str,
    at: int = 3,
    steps: int = 8,
    static_graph: bool = False,
) -> dict[str, Any]:
    """Train; ranks are killed in the middle of steps, and the others go on without them.

    Args:
        config: The configuration.
        culprits: Who is killed, one after the other: the first in step `at`, the next one in the
            step after it.
        moment: "encode" or "exchange".
        at: The step.
        steps: How many steps are trained in all.
        static_graph: As DDP takes it.
    """
    rank, alive = dist.get_rank(), list(range(dist.get_world_size()))
    net = Linear()
    wrapped = DistributedDataParallel(net, static_graph=static_graph)
    handle = compressa.register_comm_hook(wrapped, config)
    balance, events = Balance(handle), []

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.ExitStack() as stack:
        if rank in culprits:
            stack.enter_context(_MOMENTS[moment](at + culprits.index(rank), kill))
        step = 0
        while step < steps:
            before = {k: v.clone() for k, v in handle.state_dict().items()}
            try:
                net.zero_grad()
                vectors = gradients(rank, step)
                wrapped(*vectors).backward()
            except compressa.CompressaError as error:
                events.append([type(error).__name__, getattr(error, "rank", None), step])
                alive.remove(culprits[len(events) - 1])
                source = handle.reform(alive)
                group = wrapped.process_group
                assert source is None
                assert handle.next_step == step
                if len(alive) > 1:  # as who has fallen behind takes over parameters
                    compressa.broadcast(net, group=group)
                check_state(before, handle, len(alive) / (len(alive) + 1))
                balance = Balance(handle, group)
                continue
            balance.count(vectors, net)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= LR * parameter.grad
            step += 1
    result = {
        "events": events,
        "parameters": digest(net),
        "errors": balance.errors(),
        "steps": handle.next_step,
    }
    handle.close()
    end_s = time.monotonic() + 2.0
    while alive_threads() and time.monotonic() < end_s:
        time.sleep(0.01)  # a worker may have been in the middle of something
    return result | {"left": alive_threads()}


class Balance:
    """What came in and out since some step, beside what was owed then."""

    def __init__(self, handle: compressa.Handle, group: dist.ProcessGroup | None = None) -> None:
        self._handle, self._group = handle, group
        self._scales = Scales()
        self._owed = {name: kept.clone() for name, kept in residuals(handle).items()}

    def count(self, vectors: list[torch.Tensor], net: torch.nn.Module) -> None:
        self._scales.give(vectors)
        self._scales.get(net)

    def errors(self) -> list[float]:
        """Return sum out + mean residual - mean of what was owed and given, for each parameter."""
        size = dist.get_world_size(self._group)
        kept, result = residuals(self._handle), []
        for i, (given, got) in enumerate(zip(self._scales.given, self._scales.got, strict=True)):
            nothing = torch.zeros(given.numel())
            name = f"weights.{i}"
            more = kept.get(name, nothing).double() - self._owed.get(name, nothing).double()
            balance = (more.view_as(given) - given) / size
            dist.all_reduce(balance, group=self._group)
            result.append(float((balance + got).norm() / got.norm()))
        return result


def check_state(before: dict[str, torch.Tensor], handle: compressa.Handle, gain: float) -> None:
    """The step left no trace: residuals are what they were, scaled; what all share is the same."""
    after = handle.state_dict()
    prefix = next(iter(after)).split("/")[0]
    for key, vector in before.items():
        name = key.split("/", 1)[1]
        now = after[f"{prefix}/{name}"]
        if name == "step" or name.startswith("powersgd_"):
            assert torch.equal(now, vector), name
        elif name.startswith("ef21/"):
            mean = before[key.replace("ef21/", "ef21_mean/")]
            assert torch.equal(now, mean), name
        elif name.startswith("ef21_mean"):
            assert torch.equal(now, vector), name
        elif vector.dtype is torch.float32:
            assert torch.equal(now, vector * gain), name


def one_is_ahead(*, config: Any, begun: bool) -> dict[str, Any]:
    """Rank 0 has finished a step, rank 1 takes it for interrupted; they go on together.

    Args:
        config: The configuration.
        begun: Whether rank 0 has begun the next step, too, and so can not go back.
    """
    rank = dist.get_rank()
    net = Linear()
    wrapped = DistributedDataParallel(net)
    handle = compressa.register_comm_hook(wrapped, config)
    for step in range(4):
        before = {k: v.clone() for k, v in handle.state_dict().items()}
        _step(net, wrapped, rank, step, apply=rank == 0 or step < 3)  # rank 1 is behind
    engine = handle.engine
    engine.interrupted = rank == 1
    if begun and rank == 0:
        assert engine.undo is not None
        engine.undo.keep(4)
    group = dist.new_group([0, 1])
    try:
        source = handle.reform(group)
    except compressa.StateError as error:
        handle.close()
        return {"error": str(error)}
    assert handle.next_step == 3
    check_state(before, handle, 1.0)
    assert source is not None
    compressa.broadcast(net, group=group, sources=[source])
    for step in range(3, 6):
        _step(net, wrapped, rank, step)
    handle.close()
    return {"source": source, "parameters": digest(net)}


def _step(
    net: torch.nn.Module,
    wrapped: DistributedDataParallel,
    rank: int,
    step: int,
    *,
    apply: bool = True,
) -> None:
    net.zero_grad()
    wrapped(*gradients(rank, step)).backward()
    if apply:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= LR * parameter.grad


def plain(*, config: Any, steps: int) -> str:
    """Train without any loss; return the parameters' digest."""
    net = Linear()
    wrapped = DistributedDataParallel(net)
    handle = compressa.register_comm_hook(wrapped, config)
    for step in range(steps):
        _step(net, wrapped, dist.get_rank(), step)
    handle.close()
    return digest(net)


def reform_without_copy(*, config: Any) -> None:
    """Ask for what the configuration does not allow."""
    wrapped = DistributedDataParallel(Linear())
    handle = compressa.register_comm_hook(wrapped, config)
    try:
        handle.reform(dist.group.WORLD)
    finally:
        handle.close()
