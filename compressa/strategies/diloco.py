"""diloco: an outer optimizer steps against the mean of what the ranks' inner optimizers did.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
(arXiv:2311.08105); fragments, overlap and mixing: Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025 (arXiv:2501.18512).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.config.strategies import DiLoCo
from compressa.hooks import Handle
from compressa.strategies.base import Strategy, Training
from compressa.strategies.cadence import Always
from compressa.strategies.periodic import Periodic, Replica, Rule, kept, open_periodic


class Outer(Rule):
    """SGD with (Nesterov) momentum on the anchors, by outer gradients: minus the mean difference.

    Args:
        settings: The outer optimizer's, and how much of its own each rank keeps.
    """

    def __init__(self, settings: DiLoCo) -> None:
        self._settings = settings
        self._optimizer: torch.optim.SGD | None = None
        self.unites = not settings.mixing

    def prepare(self, replicas: Mapping[str, Replica], handle: Handle) -> None:
        """Make the outer optimizer, whose momenta are kept with the anchors."""
        settings, anchors = self._settings, [replica.anchor for replica in replicas.values()]
        self._optimizer = torch.optim.SGD(
            anchors,
            lr=settings.outer_rate,
            momentum=settings.outer_momentum,
            nesterov=settings.nesterov,
        )
        if settings.outer_momentum:
            known = {parameter.name: parameter for parameter in handle.engine.parameters}
            for name, replica in replicas.items():
                momentum = kept("outer_momentum", known[name], handle)
                # Zeros serve as well as nothing: the first step's momentum is its gradient.
                state = self._optimizer.state[replica.anchor]
                state["momentum_buffer"] = momentum.view(replica.anchor.shape)

    def meet(self, replicas: Sequence[Replica]) -> None:
        """Take an outer step, and have parameters follow."""
        assert self._optimizer is not None, "prepare comes first"
        for replica in replicas:
            replica.anchor.grad = replica.difference.float().neg_()
        self._optimizer.step()
        self._optimizer.zero_grad()
        for replica in replicas:
            if self._settings.mixing:
                mixed = torch.lerp(replica.anchor, replica.own.float(), self._settings.mixing)
                replica.own.copy_(mixed)
            else:
                replica.own.copy_(replica.anchor)


def open_diloco(training: Training) -> Strategy:
    """Open what the section `DiLoCo` says."""
    settings = training.config.strategy
    assert isinstance(settings, DiLoCo)
    cadence = Always(settings.every)
    handle = open_periodic(training, cadence, settings.fragments)
    with handle.closed_on_error():
        return Periodic(
            training.model,
            training.optimizer,
            handle,
            training.scaler,
            rule=Outer(settings),
            cadence=cadence,
            overlap_steps=settings.overlap_steps,
        )
