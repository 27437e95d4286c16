"""A task whose model and batches are on a device.

Models are made and evaluated on the CPU, so that they begin with the same bits on every device, and
quality is measured in one way.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lab.quality import Metric, Quality
from lab.tasks.task import Batch, Task


class Placed:
    """A task on a GPU; see :class:`~lab.tasks.task.Task`."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self._device = device

    @property
    def name(self) -> str:
        """The task's."""
        return self._task.name

    @property
    def quality(self) -> Quality:
        """The task's."""
        return self._task.quality

    def build_model(self, seed: int) -> nn.Module:
        """The task's model, moved."""
        return self._task.build_model(seed).to(self._device)

    def batch(self, rank: int, world: int, step: int, seed: int) -> Batch:
        """The task's batch, moved."""
        inputs, targets = self._task.batch(rank, world, step, seed)
        return inputs.to(self._device), targets.to(self._device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's."""
        return self._task.loss(outputs, targets)

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        """The task's."""
        return self._task.optimizer(model, steps)

    def evaluate(self, model: nn.Module) -> list[Metric]:
        """The task's, on a copy on the CPU."""
        return self._task.evaluate(copy.deepcopy(model).cpu())


def placed(task: Task, device: str) -> Task:
    """A task where its cell wants it: ranks take the GPUs in turn."""
    if device == "cpu":
        return task
    number = dist.get_rank() % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return Placed(task, torch.device("cuda", number))
