"""gossip: after steps of its own, each rank averages parameters with its neighbours.

See `compressa.aggregators.gossip`. Ranks hold different parameters; their mean takes the steps that
it would take with the mean of the gradients that they saw.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from compressa.aggregators.gossip import DISTANCE, ESTIMATE
from compressa.config.strategies import Gossip, graph_of
from compressa.errors import StateError, TransportError
from compressa.hooks import Handle, broadcast
from compressa.hooks.opening import open_handle
from compressa.parameters import as_real
from compressa.strategies.base import Strategy, Training
from compressa.strategies.refusals import check_local, check_memory


class Gossiping(Strategy):
    """See the module.

    Args:
        model: The network itself.
        optimizer: Of its parameters.
        handle: Open for them, by a configuration that says who are neighbours.
        scaler: The `GradScaler`, if losses are scaled.
        every: Steps from one meeting to the next.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        handle: Handle,
        scaler: Any,
        every: int,
    ) -> None:
        super().__init__(model, optimizer, handle, scaler)
        self._every, self._taken, self._united = every, 0, True
        self._own = {
            name: as_real(parameter.detach())
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and parameter.numel()
        }
        self._agree()

    def step(self) -> None:
        """Take a step of the optimizer; average with the neighbours if it is time to."""
        self._step_optimizer()
        self._united = False
        self._taken += 1
        if self._taken == self._every:
            self._taken = 0
            check_memory(self.model, self._own)
            self.handle.wait([self.handle.submit(self._own)], "neighbours")

    def sync(self) -> None:
        """Have all ranks go on from the mean of all, which is brought uncompressed."""
        if self._united:
            return
        group = self.handle.group
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        try:
            for values in (*self._own.values(), *buffers):
                values.div_(group.size())  # a sum of large constants might have no number
                dist.all_reduce(values, group=group)
        except RuntimeError as error:
            self.handle.check()  # says who is lost, where that is known
            raise TransportError(f"strategy.sync: ranks could not meet: {error}") from error
        self._taken, self._united = 0, True
        self._agree()

    def save(self, path: Any) -> None:
        """Write what ranks keep; see `Strategy.save`."""
        if not self._united:
            raise StateError(
                "strategy.save: ranks hold different parameters, and estimates of each other's "
                "that only they can use; call strategy.sync() first, on all ranks"
            )
        super().save(path)

    def load(self, path: Any) -> None:
        """Take back what `save` has written; see `Strategy.load`."""
        super().load(path)
        self._taken, self._united = 0, True
        vectors = self.handle.engine.state.vectors
        for name, own in self._own.items():
            estimate = vectors.get(f"{ESTIMATE}/{name}")
            if estimate is not None:
                own.copy_(estimate.view(own.shape))

    def _agree(self) -> None:
        """All ranks hold the same: so do their estimates, and nobody is away."""
        vectors = self.handle.engine.state.vectors
        for name, own in self._own.items():
            if f"{ESTIMATE}/{name}" in vectors:
                vectors[f"{ESTIMATE}/{name}"].copy_(own.flatten())
                vectors[f"{DISTANCE}/{name}"].zero_()


def open_gossip(training: Training) -> Strategy:
    """Open what the section `Gossip` says."""
    settings, ranks = training.config.strategy, training.group
    assert isinstance(settings, Gossip)

    def check(_: object) -> None:
        check_local(training)
        graph_of(settings, ranks.size())

    handle = open_handle(
        training.caller,
        training.config,
        training.model,
        ranks,
        strategies=["gossip"],
        check=check,
    )
    with handle.closed_on_error():
        broadcast(training.model, group=ranks, config=training.config)
        optimizer, scaler = training.optimizer, training.scaler
        return Gossiping(training.model, optimizer, handle, scaler, settings.every)
