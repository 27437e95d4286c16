"""sgp: stochastic gradient push; after steps of its own, each rank pushes shares to others.

Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", ICML
2019 (arXiv:1811.10792). Each rank keeps biased parameters x_i and a push-sum weight w_i, 1 at
first. The model holds z_i = x_i / w_i, at which gradients are taken, and steps are added to x_i. A
meeting pushes both; see `compressa.aggregators.push_sum`.

All ranks held the same a when they last agreed, and x_i = w_i a + y_i. Pushed is y_i, how far a
rank has come since: as P is linear, the iterates are the paper's, and what a codec loses is a part
of that only. The sums of x_i and of w_i over the ranks are conserved, but for rounding; `sync`
takes the first, divided by the number of ranks. Without a lost rank the others begin anew, from the
mean of their z_i and weights of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from compressa.config.strategies import graph_of
from compressa.config.strategy_sections import SGP
from compressa.hooks import Handle
from compressa.strategies.apart import Apart
from compressa.strategies.base import Strategy, Training
from compressa.strategies.local import average, open_local, statistics_of
from compressa.strategies.refusals import check_memory

WEIGHT = "compressa: push-sum weight"
_PLACES = 2  # of float32, for one float64


class GradientPush(Apart):
    """See the module.

    Args:
        training: What is trained.
        handle: Open for it and for `WEIGHT`, by a configuration that says who sends to whom.
        every: Steps from one meeting to the next.

    Attributes:
        weight: w_i, float64[1].
    """

    _afresh = True

    def __init__(self, training: Training, handle: Handle, every: int) -> None:
        super().__init__(training, handle)
        self._every, self._taken = every, 0
        device = handle.engine.device_stream.device
        self.weight = torch.ones(1, dtype=torch.float64, device=device)
        self._anchor = {name: own.clone() for name, own in self._own.items()}
        self._pushed = {name: torch.zeros_like(own) for name, own in self._own.items()}

    def load(self, path: str | Path) -> None:
        """Take back what `save` has written, where all hold the same; see `Strategy.load`."""
        super().load(path)
        self._agree()

    def _go_on(self) -> None:
        self._taken += 1
        if self._taken < self._every:
            return
        self._taken = 0
        check_memory(self.model, self._own)
        self._take_steps()
        sent = {**self._pushed, WEIGHT: self.weight.view(torch.float32)}
        self.handle.wait([self.handle.submit(sent)], "a push")
        for name, own in self._own.items():
            own.copy_(self._debiased(name))

    def _unite(self) -> None:
        self._take_steps()
        self._average(self._pushed)
        for name, own in self._own.items():
            torch.add(self._anchor[name], self._pushed[name], out=own)
        self._agree()

    def _reunite(self) -> None:
        """From what models hold: of the rest, some was pushed when the meeting failed, some not."""
        self._average(self._own)
        self._agree()

    def _average(self, tensors: Mapping[str, torch.Tensor]) -> None:
        handle = self.handle
        average({**tensors, **statistics_of(self.model)}, handle.config, handle.group, handle.check)

    def _take_steps(self) -> None:
        """Add what the optimizer has done since the last meeting."""
        for name, own in self._own.items():
            self._pushed[name].add_(own - self._debiased(name))

    def _debiased(self, name: str) -> torch.Tensor:
        """Return z, with the same bits from one meeting to the next."""
        return self._anchor[name] + self._pushed[name] / self.weight.item()

    def _agree(self) -> None:
        """All ranks hold the same, which is where they go on from."""
        self._taken, self._united = 0, True
        self.weight.fill_(1.0)
        for name, own in self._own.items():
            self._anchor[name].copy_(own)
            self._pushed[name].zero_()


def open_sgp(training: Training) -> Strategy:
    """Open what the section `SGP` says."""
    settings = training.config.strategy
    assert isinstance(settings, SGP)
    size = training.group.size()

    def check() -> None:
        graph_of(settings, size)  # it refuses the shares of another number of ranks

    handle = open_local(training, check=check, exact={WEIGHT: _PLACES})
    with handle.closed_on_error():
        return GradientPush(training, handle, settings.every)
