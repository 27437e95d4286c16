"""What a task is: a model, seeded data, a loss, an optimizer and a quality to report.

A task knows nothing of compressors, links or processes. Its data order is a function of
(seed, step, rank, world) alone, so every compressor is trained on exactly the same batches in the
same order, and what differs at the end was caused by the compressor.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lab.quality import Metric, Quality

Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """A training task; see the module docstring for the rule that its data order keeps."""

    @property
    def name(self) -> str:
        """The name that plans and result tables use."""
        ...

    @property
    def quality(self) -> Quality:
        """What ``evaluate`` reports first, and the target that it sets."""
        ...

    def build_model(self, seed: int) -> nn.Module:
        """A fresh model; equal seeds give equal bits. The caller's generators are untouched."""
        ...

    def batch(self, rank: int, world: int, step: int, seed: int) -> Batch:
        """The batch of one rank at one step; ranks of one step share no example."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar training loss (mean over the batch)."""
        ...

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        """The optimizer and its learning-rate schedule over ``steps`` steps."""
        ...

    def evaluate(self, model: nn.Module) -> list[Metric]:
        """Metrics on the validation split; the first is the one that ``quality`` describes."""
        ...
