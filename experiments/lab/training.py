"""Train cells: the quality that a task reaches under one compressor."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.cells import CurvePoint, TrainAnswer, TrainCell
from lab.compressors import attach, dense_warmup_steps
from lab.quality import Metric
from lab.tasks import Task, load_task, placed


def parameters_sha256(model: nn.Module) -> str:
    """One hash over the bits of all parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def wrap(model: nn.Module, bucket_cap_mb: float) -> DistributedDataParallel:
    """DDP as both kinds of cell use it."""
    return DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Curve:
    """Quality points of rank 0 and the clock of the training between them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started_s = time.perf_counter()
        self.elapsed_s = 0.0
        self.points: list[CurvePoint] = []
        self.metrics: list[Metric] = []

    def pause_and_evaluate(self, step: int, model: nn.Module) -> None:
        """Adds a point; all ranks wait meanwhile, and none of it counts as training."""
        dist.barrier()
        self.elapsed_s += time.perf_counter() - self._started_s
        if dist.get_rank() == 0:
            model.eval()
            self.metrics = self._task.evaluate(model)
            model.train()
            value = _finite(self.metrics[0].value)
            self.points.append(CurvePoint(step=step, value=value, elapsed_s=self.elapsed_s))
        dist.barrier()
        self._started_s = time.perf_counter()


def train(cell: TrainCell, progress: Callable[[int], None]) -> TrainAnswer:
    """Runs one train cell on this rank; every rank must call it with the same cell."""
    task = placed(load_task(cell.task), cell.device)
    model = task.build_model(cell.seed)
    ddp = wrap(model, cell.bucket_cap_mb)
    attachment = attach(ddp, cell.compressor, steady=False)
    try:
        curve = _run(cell, task, model, ddp, progress)
    finally:
        attachment.close()
    return TrainAnswer(
        parameters_sha256=parameters_sha256(model),
        parameters_elems=sum(p.numel() for p in model.parameters()),
        elapsed_s=curve.elapsed_s,
        dense_warmup_steps=dense_warmup_steps(cell.compressor),
        curve=curve.points,
        metrics={metric.name: _finite(metric.value) for metric in curve.metrics},
        units={metric.name: metric.unit for metric in curve.metrics},
    )


def _run(
    cell: TrainCell,
    task: Task,
    model: nn.Module,
    ddp: DistributedDataParallel,
    progress: Callable[[int], None],
) -> _Curve:
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer, schedule = task.optimizer(model, cell.steps)
    curve = _Curve(task)
    for step in range(cell.steps):
        inputs, targets = task.batch(rank, world, step, cell.seed)
        optimizer.zero_grad(set_to_none=False)
        task.loss(ddp(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        progress(step + 1)
        if (step + 1) % cell.eval_every == 0 or step + 1 == cell.steps:
            curve.pause_and_evaluate(step + 1, model)
    return curve
