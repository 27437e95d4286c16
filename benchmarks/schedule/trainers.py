"""Trainers: one way to train each, side by side in one process, and each with its own model.

The model is a perceptron of equal layers, as large as its communication should be.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from benchmarks.schedule.plan import Method
from compressa.hooks import Handle, register_comm_hook
from compressa.overlap import OverlappedDataParallel

LAYERS = 48
WIDTH = 150
ELEMS = LAYERS * WIDTH * (WIDTH + 1)
"""Of its parameters: 4.3 MB of float32."""

_RATE, _MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Stepped:
    """How long a training step took, and its forward pass alone."""

    step_s: float
    forward_s: float


class Trainer(ABC):
    """Trains a model of its own.

    Attributes:
        handle: Of our engine, where there is one.
    """

    handle: Handle | None = None
    _forward: Callable[[torch.Tensor], torch.Tensor]

    def __init__(self) -> None:
        torch.manual_seed(0)  # the same values on every rank
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._module = nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._module.parameters(), _RATE, _MOMENTUM)

    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a training step; its communication may go on afterwards.

        Args:
            batch: Of `WIDTH` columns.
        """
        begin_s = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._forward(batch).square().mean()
        forward_s = time.perf_counter() - begin_s
        loss.backward()
        self._optimizer.step()
        return Stepped(time.perf_counter() - begin_s, forward_s)

    def settle(self) -> None:  # noqa: B027 - most have nothing that goes on
        """Wait for all that goes on."""

    @abstractmethod
    def close(self) -> None:
        """End what it has started."""


@final
class Alone(Trainer):
    """Computes, and communicates nothing: the gradients are this rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self._forward = self._module

    def close(self) -> None:
        """Nothing was started."""


@final
class Distributed(Trainer):
    """DistributedDataParallel, by itself or with our hook."""

    def __init__(self, method: Method, compressor: str, link: str | None) -> None:
        super().__init__()
        self._forward = model = DistributedDataParallel(
            self._module, bucket_cap_mb=method.bucket_cap_mb, init_sync=False
        )
        if method.kind == "hook":
            self.handle = register_comm_hook(model, method.config(compressor, link))
        elif compressor == "bf16":
            # As many bytes: torch's hook for bf16 is for GPUs only.
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def close(self) -> None:
        """End our engine."""
        if self.handle is not None:
            self.handle.close()


@final
class Overlapped(Trainer):
    """OverlappedDataParallel, whose next step waits for what it uses."""

    def __init__(self, method: Method, compressor: str, link: str | None) -> None:
        super().__init__()
        self._forward = self._model = OverlappedDataParallel(
            self._module, self._optimizer, method.config(compressor, link)
        )
        self.handle = self._model.handle

    def settle(self) -> None:
        """Do all updates."""
        self._model.flush()

    def exchange(self) -> float:
        """Exchange all gradients, all of which are there at once; return the seconds that takes."""
        self.settle()
        handle = self._model.handle
        gradients = {p.name: torch.ones(p.shape) for p in handle.engine.parameters}
        begin_s = time.perf_counter()
        handle.wait([handle.submit(gradients)])
        return time.perf_counter() - begin_s

    def close(self) -> None:
        """End our engine."""
        self._model.close()


def trainer_of(method: Method, compressor: str, link: str | None) -> Trainer:
    """Set a method up; collective."""
    if method.kind == "overlap":
        return Overlapped(method, compressor, link)
    return Distributed(method, compressor, link)
