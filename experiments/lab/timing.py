"""Time cells: the parts of one step, on whatever link the testbed has been set to.

DDP's ``backward`` does not return before communication is done, so its time says nothing about
computing. What computing costs is measured in the same run on a plain copy of the model: every
rank does forward, backward and optimizer step at the same time as the others, with no
communication, half of it before the timed steps and half behind them. What a timed step takes
beyond that is codec and exposed communication.

A compressor's own warm-up is left out: what is timed is the step that comes after it.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lab.cells import TimeAnswer, TimeCell
from lab.compressors import Attachment, Totals, attach
from lab.tasks import Task, load_task
from lab.training import parameters_sha256, wrap

Edge = Callable[[Literal["start", "end"]], None]


@dataclass
class _Parts:
    """Seconds of every probed step, by part."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    optimizer_s: list[float] = field(default_factory=list)


class _Probe:
    """Forward, backward and optimizer step on a copy of the model, without communication."""

    def __init__(self, cell: TimeCell, task: Task, model: nn.Module) -> None:
        self._task = task
        self._seed = cell.seed
        self._model = copy.deepcopy(model)
        self._optimizer, _ = task.optimizer(self._model, cell.steps)
        self._step = 0
        self.parts = _Parts()

    def run(self, steps: int, record: bool = True) -> None:
        """``steps`` steps; all ranks start each of them together, as they do in training."""
        for _ in range(steps):
            dist.barrier()
            times = self._one_step()
            if record:
                self.parts.forward_s.append(times[1] - times[0])
                self.parts.backward_s.append(times[2] - times[1])
                self.parts.optimizer_s.append(times[3] - times[2])

    def _one_step(self) -> tuple[float, float, float, float]:
        inputs, targets = self._task.batch(
            dist.get_rank(), dist.get_world_size(), self._step, self._seed
        )
        self._step += 1
        self._optimizer.zero_grad(set_to_none=False)
        started = time.perf_counter()
        loss = self._task.loss(self._model(inputs), targets)
        forward_end = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward_end = time.perf_counter()
        self._optimizer.step()
        return started, forward_end, backward_end, time.perf_counter()


def _steps(
    cell: TimeCell, task: Task, ddp: DistributedDataParallel, optimizer: Optimizer, steps: range
) -> list[float]:
    """Seconds of each step, from the end of the one before it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    times: list[float] = []
    before = time.perf_counter()
    for step in steps:
        inputs, targets = task.batch(rank, world, step, cell.seed)
        optimizer.zero_grad(set_to_none=False)
        task.loss(ddp(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times


def measure(cell: TimeCell, edge: Edge) -> TimeAnswer:
    """Runs one time cell on this rank; every rank must call it with the same cell.

    Args:
        cell: What to time.
        edge: Called before and behind the timed section, when every rank is there and nothing is
            on the wire; returns when the driver has read the interface counters.
    """
    task = load_task(cell.task)
    model = task.build_model(cell.seed)
    probe = _Probe(cell, task, model)
    ddp = wrap(model, cell.bucket_cap_mb)
    attachment = attach(ddp, cell.compressor, steady=True)
    try:
        optimizer, _ = task.optimizer(model, cell.steps)
        probe.run(2, record=False)
        _steps(cell, task, ddp, optimizer, range(cell.warmup_steps))
        probe.run((cell.steps + 1) // 2)
        timed = range(cell.warmup_steps, cell.warmup_steps + cell.steps)
        before = _at_edge(edge, "start", attachment)
        times = _steps(cell, task, ddp, optimizer, timed)
        after = _at_edge(edge, "end", attachment)
        probe.run((cell.steps + 1) // 2)
    finally:
        attachment.close()
    return _answer(model, probe.parts, times, attachment, before, after)


def _at_edge(edge: Edge, which: Literal["start", "end"], attachment: Attachment) -> Totals | None:
    dist.barrier()
    totals = attachment.totals() if attachment.totals else None
    edge(which)
    return totals


def _answer(
    model: nn.Module,
    parts: _Parts,
    times: list[float],
    attachment: Attachment,
    before: Totals | None,
    after: Totals | None,
) -> TimeAnswer:
    codec_s, accounted = None, attachment.bytes_per_step
    if before is not None and after is not None:
        codec_s = (after.codec_s - before.codec_s) / len(times)
        accounted = (after.bytes_accounted - before.bytes_accounted) / len(times)
    return TimeAnswer(
        rank=dist.get_rank(),
        parameters_sha256=parameters_sha256(model),
        step_s=statistics.median(times),
        step_mean_s=statistics.fmean(times),
        forward_s=statistics.median(parts.forward_s),
        backward_s=statistics.median(parts.backward_s),
        optimizer_s=statistics.median(parts.optimizer_s),
        codec_s=codec_s,
        bytes_dense=_dense_bytes(model),
        bytes_accounted=accounted,
    )


def _dense_bytes(model: nn.Module) -> int:
    return 4 * sum(p.numel() for p in model.parameters() if p.requires_grad and _is_float(p))


def _is_float(parameter: torch.Tensor) -> bool:
    return parameter.is_floating_point()
