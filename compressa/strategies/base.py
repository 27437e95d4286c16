"""Strategy: what `compressa.attach` returns, and a training loop calls after each backward pass."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from compressa.config import Config, Source
from compressa.engine.measuring.stats import Stats
from compressa.errors import StateError
from compressa.hooks import Handle


@dataclass(frozen=True)
class Training:
    """What `compressa.attach` was given.

    Attributes:
        model: As given.
        optimizer: As given.
        source: Of the configuration.
        config: That was read from it.
        group: Who takes part.
        scaler: As given.
        caller: The function that the user called, which errors name.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    source: Source
    config: Config
    group: dist.ProcessGroup
    scaler: Any
    caller: str


class Strategy(ABC):
    """Trains a model on all ranks; in a `with` statement it is closed at the end.

    Args:
        model: What the training loop calls.
        optimizer: Of its parameters.
        scaler: The `GradScaler`, if losses are scaled.

    Attributes:
        model: As given.
        optimizer: As given.
        serves: Whether this rank only keeps values for the others: call `serve`, and train not.
    """

    serves = False
    _meets_in_step = True  # so that the optimizer's own step would leave the others out

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self._scaler = scaler
        self._stepping = False
        self._taken_over = optimizer.register_step_pre_hook(_refusing(self))

    def __enter__(self) -> Self:
        """Return the strategy."""
        return self

    @abstractmethod
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""

    @abstractmethod
    def step(self) -> None:
        """Take a step of the optimizer, and meet the other ranks if it is time to.

        In place of `optimizer.step()`, and of `scaler.step(optimizer)` and `scaler.update()`.

        Raises:
            PeerLost: A rank is lost; the same error on all ranks.
            Timeout: A rank has not come within `exchange.deadline_s`.
            CompressaError: Ranks could not meet otherwise.
        """

    @abstractmethod
    def sync(self) -> None:
        """Have all ranks hold the same parameters, as for an evaluation or a checkpoint.

        Collective: all ranks call it after the same step; where they do not meet in steps, each
        after its own last one.

        Raises:
            CompressaError: As `step`.
        """

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write what ranks keep besides model and optimizer, one file per rank. Collective.

        Args:
            path: A folder on a file system that all ranks share.

        Raises:
            StateError: Ranks are between two meetings (call `sync` first), or some rank could not
                write; on every rank.
        """

    @abstractmethod
    def load(self, path: str | Path) -> None:
        """Take back what `save` has written; the model's and optimizer's state come from elsewhere.

        Collective. Another number of ranks may read it.

        Args:
            path: The folder that `save` was given.

        Raises:
            StateError: It cannot be read, or is of another model or strategy; on every rank. Or
                ranks are between two meetings.
        """

    @abstractmethod
    def stats(self) -> Stats:
        """Return what was measured on this rank; a step in it is a meeting."""

    def close(self) -> None:
        """End all threads; the model and the optimizer stay."""
        self._taken_over.remove()

    def serve(self) -> None:
        """Keep values until all who train have closed. The whole life of a rank that `serves`.

        Raises:
            StateError: This rank trains.
            CompressaError: A rank is lost, or something else failed.
        """
        raise StateError("strategy.serve: this rank trains; call step")

    def _step_optimizer(self) -> None:
        self._stepping = True
        try:
            if self._scaler is None:
                self.optimizer.step()
            else:
                self._scaler.step(self.optimizer)
                self._scaler.update()
        finally:
            self._stepping = False


def _refusing(strategy: Strategy) -> Callable[..., None]:
    """Return what is called before each step of the optimizer; it does not keep the strategy."""
    own = weakref.ref(strategy)

    def refuse(*_: Any) -> None:
        strategy = own()
        if strategy is not None and strategy._meets_in_step and not strategy._stepping:
            raise StateError(
                "optimizer.step() was called in place of strategy.step(): this rank would train by "
                "itself, and never meet the others; close the strategy first if that is meant"
            )

    return refuse


class EngineStrategy(Strategy):
    """One whose ranks combine tensors by an engine.

    Args:
        model: What the training loop calls.
        optimizer: Of its parameters.
        handle: Combines tensors; closed with the strategy.
        scaler: The `GradScaler`, if losses are scaled.

    Attributes:
        handle: As given; for traces and all else that a handle does.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle, scaler: Any
    ) -> None:
        super().__init__(model, optimizer, scaler)
        self.handle = handle

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        try:
            if error is not None:
                self.handle.__exit__(kind, error, trace)
        finally:
            self.close()

    def save(self, path: str | Path) -> None:
        """Write what ranks keep; see `Strategy.save`."""
        self.handle.save(path)

    def load(self, path: str | Path) -> None:
        """Take back what `save` has written; see `Strategy.load`."""
        self.handle.load(path)

    def stats(self) -> Stats:
        """Return what was measured on this rank; a step in it is a meeting."""
        return self.handle.stats()

    def close(self) -> None:
        """End all threads; the model and the optimizer stay."""
        super().close()
        self.handle.close()
