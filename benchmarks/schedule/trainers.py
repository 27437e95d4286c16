"""Trainers: one way to train each, side by side in one process, and each with its own model."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import final

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from benchmarks.schedule.methods import Method
from benchmarks.schedule.model import Stepped, optimizer_of, perceptron, train_step
from compressa.hooks import Handle, register_comm_hook
from compressa.overlap import OverlappedDataParallel


class Trainer(ABC):
    """Trains a model of its own.

    Attributes:
        handle: Of our engine, where there is one.
    """

    handle: Handle | None = None

    @abstractmethod
    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a training step; its communication may go on afterwards."""

    def settle(self) -> None:  # noqa: B027 - most have nothing that goes on
        """Wait for all that goes on."""

    def close(self) -> None:  # noqa: B027
        """End what it has started."""


@final
class Alone(Trainer):
    """Computes, and communicates nothing."""

    def __init__(self) -> None:
        self._model = perceptron()
        self._optimizer = optimizer_of(self._model)

    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a step on this rank's own gradients."""
        return train_step(self._model, self._optimizer, batch)


class Distributed(Trainer):
    """DistributedDataParallel, by itself or with our hook."""

    def __init__(self, method: Method, compressor: str, link: str | None) -> None:
        self._module = perceptron()
        self._model = DistributedDataParallel(
            self._module, bucket_cap_mb=method.bucket_cap_mb, init_sync=False
        )
        self._optimizer = optimizer_of(self._module)
        if method.kind == "hook":
            self.handle = register_comm_hook(self._model, method.config(compressor, link))
        elif compressor == "bf16":
            # As many bytes: torch's hook for bf16 is for GPUs only.
            self._model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a step."""
        return train_step(self._model, self._optimizer, batch)

    def close(self) -> None:
        """End our engine."""
        if self.handle is not None:
            self.handle.close()


@final
class Overlapped(Trainer):
    """OverlappedDataParallel."""

    def __init__(self, method: Method, compressor: str, link: str | None) -> None:
        module = perceptron()
        self._optimizer = optimizer_of(module)
        self._model = OverlappedDataParallel(
            module, self._optimizer, method.config(compressor, link)
        )
        self.handle = self._model.handle

    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a step; the next one waits for what it uses."""
        return train_step(self._model, self._optimizer, batch)

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
