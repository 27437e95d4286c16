"""Train cells: the quality that a task reaches under one compressor."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lab.compressors import Attachment, attach, dense_warmup_steps, stretches
from lab.records import CurvePoint, TimeCell, TrainCell, Trained
from lab.tasks import Task, load_task
from lab.tasks.task import Metric


def parameters_sha256(model: nn.Module) -> str:
    """One hash over the bits of all parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def build_model(cell: TrainCell | TimeCell) -> nn.Module:
    """A cell's model on its device: it begins with the same bits on every one."""
    return load_task(cell.task).build_model(cell.seed).to(_device(cell.device))


def _device(kind: str) -> torch.device:
    """The CPU; or a GPU, which ranks take in turn."""
    if kind == "cpu":
        return torch.device(kind)
    device = torch.device(kind, dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class Stepper:
    """What a cell's steps have in common, on one rank.

    Args:
        cell: Says which task, seed and device.
        task: It.
        model: Its parameters are updated.
    """

    def __init__(self, cell: TrainCell | TimeCell, task: Task, model: nn.Module) -> None:
        self._task, self._seed, self._device = task, cell.seed, _device(cell.device)
        self.optimizer, self.schedule = task.optimizer(model, cell.steps)

    def follow(self, optimizer: Optimizer, step: int) -> None:
        """Have the schedule set another optimizer's rate from a step on, if it is another."""
        if optimizer is not self.optimizer:
            self.optimizer = optimizer
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]
            self.schedule = LambdaLR(optimizer, self.schedule.lr_lambdas[0], last_epoch=step - 1)

    def loss(self, forward: nn.Module, step: int) -> Tensor:
        """Fetch a step's batch, zero the gradients, and do the forward pass; the scalar loss."""
        batch = self._task.batch(dist.get_rank(), dist.get_world_size(), step, self._seed)
        inputs, targets = (part.to(self._device) for part in batch)
        self.optimizer.zero_grad(set_to_none=False)
        return self._task.loss(forward(inputs), targets)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Curve:
    """Quality of rank 0's model in the course of training, measured when that is over.

    So nobody waits for an evaluation: ranks that do not wait for each other are not made to.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._started_s = 0.0
        self._kept: list[tuple[int, float, nn.Module]] = []
        self.elapsed_s = 0.0
        self.points: list[CurvePoint] = []
        self.metrics: list[Metric] = []

    def begin(self) -> None:
        """Have time count from now on."""
        self._started_s = time.perf_counter()

    def keep(self, step: int, model: nn.Module) -> None:
        """Keep a copy, on the CPU; the time for it does not count."""
        begun_s = time.perf_counter()
        self.elapsed_s = begun_s - self._started_s
        if dist.get_rank() == 0:
            self._kept.append((step, self.elapsed_s, copy.deepcopy(model).cpu().eval()))
        self._started_s += time.perf_counter() - begun_s

    def evaluate(self) -> None:
        """Add a point for each copy."""
        dist.barrier()
        for step, elapsed_s, model in self._kept:
            self.metrics = self._task.evaluate(model)
            value = _finite(self.metrics[0].value)
            self.points.append(CurvePoint(step=step, value=value, elapsed_s=elapsed_s))


def train(cell: TrainCell, progress: Callable[[int], None]) -> Trained:
    """Runs one train cell on this rank; every rank must call it with the same cell.

    Args:
        cell: What to train.
        progress: Is told each step that is done.

    Raises:
        compressa.CompressaError: The compressor's configuration is wrong, or a rank was lost.
        KeyError: There is no such task or compressor.
    """
    task, model = load_task(cell.task), build_model(cell)
    stepper, curve = Stepper(cell, task, model), _Curve(task)
    for steps, spec in stretches(cell.compressor, cell.steps):
        attachment = attach(
            model, stepper.optimizer, spec, steady=False, bucket_cap_mb=cell.bucket_cap_mb
        )
        stepper.follow(attachment.optimizer, steps.start)
        if not steps.start:
            curve.begin()
        try:
            _run(cell, steps, model, stepper, attachment, curve, progress)
        finally:
            attachment.close()
    curve.evaluate()
    return Trained(
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
    steps: range,
    model: nn.Module,
    stepper: Stepper,
    attachment: Attachment,
    curve: _Curve,
    progress: Callable[[int], None],
) -> None:
    slower = cell.compressor.slowest - 1.0 if dist.get_rank() == dist.get_world_size() - 1 else 0.0
    for step in steps:
        begun_s = time.perf_counter()
        loss = stepper.loss(attachment.model, step)
        if slower:
            time.sleep(slower * (time.perf_counter() - begun_s))
        begun_s = time.thread_time()
        loss.backward()
        if slower:
            time.sleep(slower * (time.thread_time() - begun_s))
        attachment.step()
        stepper.schedule.step()
        progress(step + 1)
        if step + 1 == steps.stop:
            attachment.sync()
        if (step + 1) % cell.eval_every == 0 or step + 1 == cell.steps:
            curve.keep(step + 1, model)
