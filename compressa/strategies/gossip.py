"""gossip: after steps of its own, each rank averages parameters with its neighbours.

See `compressa.aggregators.gossip`. Ranks hold different parameters; their mean takes the steps that
it would take with the mean of the gradients that they saw.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from compressa.aggregators.gossip import DISTANCE, ESTIMATE
from compressa.config.strategies import Gossip, graph_of
from compressa.errors import StateError, TransportError
from compressa.hooks import Handle
from compressa.overlap.opening import trained
from compressa.parameters import as_real
from compressa.strategies.base import EngineStrategy, Strategy, Training
from compressa.strategies.local import open_local, statistics_of
from compressa.strategies.refusals import check_memory


class Gossiping(EngineStrategy):
    """See the module.

    Args:
        training: What is trained.
        handle: Open for it, by a configuration that says who are neighbours.
        every: Steps from one meeting to the next.
    """

    def __init__(self, training: Training, handle: Handle, every: int) -> None:
        super().__init__(training.model, training.optimizer, handle, training.scaler)
        self._every, self._taken, self._united = every, 0, True
        self._own = {n: as_real(p.detach()) for n, p in trained(training.model).items()}
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
        try:
            for values in (*self._own.values(), *statistics_of(self.model).values()):
                values.div_(group.size())  # a sum of large constants might have no number
                dist.all_reduce(values, group=group)
        except RuntimeError as error:
            self.handle.check()  # says who is lost, where that is known
            raise TransportError(f"strategy.sync: ranks could not meet: {error}") from error
        self._taken, self._united = 0, True
        self._agree()

    def save(self, path: str | Path) -> None:
        """Write what ranks keep; see `Strategy.save`."""
        if not self._united:
            raise StateError(
                "strategy.save: ranks hold different parameters, and estimates of each other's "
                "that only they can use; call strategy.sync() first, on all ranks"
            )
        super().save(path)

    def load(self, path: str | Path) -> None:
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
    settings = training.config.strategy
    assert isinstance(settings, Gossip)
    size = training.group.size()

    def check() -> None:
        graph_of(settings, size)  # it refuses the weights of another number of ranks

    handle = open_local(training, check=check)
    with handle.closed_on_error():
        return Gossiping(training, handle, settings.every)
