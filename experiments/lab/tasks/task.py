"""What a task is: a model, seeded data, a loss, an optimizer and a quality to report.

A task knows nothing of compressors, links, devices or processes. Its data order is a function of
(seed, step, rank, world) alone, so every compressor is trained on exactly the same batches in the
same order, and what differs at the end was caused by the compressor.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lab.records import Quality

Batch = tuple[Tensor, Tensor]


class Metric(NamedTuple):
    """One measured number with its name and unit."""

    name: str
    value: float
    unit: str


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
        """A fresh model on the CPU; equal seeds give equal bits.

        The caller's generators are untouched.
        """
        ...

    def batch(self, rank: int, world: int, step: int, seed: int) -> Batch:
        """The batch of one rank at one step; ranks of one step share no example.

        Inputs and targets are on the CPU; a task says their shapes and dtypes.

        Raises:
            ValueError: If one step of all ranks needs more examples than there are.
        """
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss of the model's outputs, the mean over the batch; of shape ()."""
        ...

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Optimizer, LambdaLR]:
        """The optimizer and its learning-rate schedule over ``steps`` steps."""
        ...

    def evaluate(self, model: nn.Module) -> list[Metric]:
        """Metrics on the validation split; the first is the one that ``quality`` describes.

        The model is on the CPU, and in evaluation mode.
        """
        ...


class EpochOrder:
    """Seeded data order: which examples a rank sees at a step.

    Each epoch is one permutation of the ``examples`` items, drawn from (seed, epoch) by a
    counter-based generator; the last one is kept. A step takes the next ``world * batch`` of them
    and every rank its own slice, so ranks are disjoint, nothing repeats within an epoch, and no
    state has to be carried from step to step.

    Raises:
        ValueError: If one step of all ranks needs more examples than there are.
    """

    def __init__(self, examples: int, batch: int) -> None:
        self.examples = examples
        self.batch = batch
        self._key: tuple[int, int] | None = None
        self._permutation: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def indices(self, rank: int, world: int, step: int, seed: int) -> Tensor:
        """Indices of shape (batch,), int64, of ``rank`` at ``step``."""
        per_step = world * self.batch
        steps_per_epoch = self.examples // per_step
        if steps_per_epoch == 0:
            raise ValueError(
                f"{world} ranks x {self.batch} examples need {per_step} examples per step, "
                f"and the training split has {self.examples}: use fewer hosts"
            )
        epoch, position = divmod(step, steps_per_epoch)
        start = position * per_step + rank * self.batch
        return torch.from_numpy(self._epoch(seed, epoch)[start : start + self.batch])

    def _epoch(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        if self._key != (seed, epoch):
            generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
            self._permutation = generator.permutation(self.examples).astype(np.int64)
            self._key = (seed, epoch)
        return self._permutation


def seeded(seed: int, build: type[nn.Module], *args: object) -> nn.Module:
    """``build(*args)`` with torch's CPU generator seeded, and restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*args)


def warmup_then_cosine(optimizer: Optimizer, steps: int, warmup: int) -> LambdaLR:
    """Linear warm-up over ``warmup`` steps, then half a cosine down to a tenth at ``steps``."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return 0.1 + 0.45 * (1.0 + float(np.cos(np.pi * progress)))

    return LambdaLR(optimizer, factor)
