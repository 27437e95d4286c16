"""gossip: after steps of its own, each rank averages parameters with its neighbours.

See `compressa.aggregators.gossip`. Ranks hold different parameters; their mean takes the steps that
it would take with the mean of the gradients that they saw.
"""

from __future__ import annotations

from pathlib import Path

from compressa.aggregators.gossip import DISTANCE, ESTIMATE
from compressa.config.strategies import graph_of
from compressa.config.strategy_sections import Gossip
from compressa.hooks import Handle
from compressa.strategies.apart import Apart
from compressa.strategies.base import Strategy, Training
from compressa.strategies.local import average, open_local, statistics_of
from compressa.strategies.refusals import check_memory


class Gossiping(Apart):
    """See the module. `sync` averages over all ranks, uncompressed.

    Args:
        training: What is trained.
        handle: Open for it, by a configuration that says who are neighbours.
        every: Steps from one meeting to the next.
    """

    _afresh = True  # estimates are as parameters once all hold the same

    def __init__(self, training: Training, handle: Handle, every: int) -> None:
        super().__init__(training, handle)
        self._every, self._taken = every, 0
        self._agree()

    def load(self, path: str | Path) -> None:
        """Take back what `save` has written; see `Strategy.load`."""
        super().load(path)
        self._taken, self._united = 0, True
        vectors = self.handle.engine.state.vectors
        for name, own in self._own.items():
            estimate = vectors.get(f"{ESTIMATE}/{name}")
            if estimate is not None:
                own.copy_(estimate.view(own.shape))

    def _go_on(self) -> None:
        self._taken += 1
        if self._taken == self._every:
            self._taken = 0
            check_memory(self.model, self._own)
            self.handle.wait([self.handle.submit(self._own)], "neighbours")

    def _unite(self) -> None:
        handle = self.handle
        average(
            {**self._own, **statistics_of(self.model)}, handle.config, handle.group, handle.check
        )
        self._taken, self._united = 0, True
        self._agree()

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
