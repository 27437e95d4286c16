"""diloco: an outer optimizer steps against the mean of what the ranks' inner optimizers did.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
(arXiv:2311.08105); fragments, overlap and mixing: Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025 (arXiv:2501.18512).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.config.strategy_sections import DiLoCo
from compressa.hooks import Handle
from compressa.strategies.base import Strategy, Training
from compressa.strategies.cadence import Always
from compressa.strategies.periodic import Replica, Rule, kept, open_periodic


class Outer(Rule):
    """SGD with (Nesterov) momentum on the anchors, by outer gradients: minus the mean difference.

    Not torch's, whose additions of a multiple are rounded once on some processors and twice on
    others, so that anchors would not have the same bits on all ranks.

    Args:
        settings: The outer optimizer's, and how much of its own each rank keeps.
    """

    def __init__(self, settings: DiLoCo) -> None:
        self._settings = settings
        self._momenta: dict[int, torch.Tensor] = {}  # by replica
        self.unites = not settings.mixing

    def prepare(self, replicas: Mapping[str, Replica], handle: Handle) -> None:
        """Make the momenta, float32 and of the anchors' shapes, unless there is no outer momentum.

        They are vectors "outer_momentum/NAME" of the engine's state, the same on all ranks: saved
        with the anchors, and what was loaded if there is a checkpoint.

        Args:
            replicas: By the names that the engine was opened with.
            handle: Has that engine.
        """
        if self._settings.outer_momentum:
            known = {parameter.name: parameter for parameter in handle.engine.parameters}
            for name, replica in replicas.items():
                momentum = kept("outer_momentum", known[name], handle)
                self._momenta[id(replica)] = momentum.view(replica.anchor.shape)

    def meet(self, replicas: Sequence[Replica], ranks: int) -> None:
        """Take an outer step, and have parameters follow, wholly or by the share of `mixing`.

        Args:
            replicas: As `Rule.meet` says, among those of `prepare`; anchors, momenta and own values
                are written.
            ranks: Of no effect: differences are means already.
        """
        settings = self._settings
        for replica in replicas:
            change = replica.difference.float()
            momentum = self._momenta.get(id(replica))
            if momentum is not None:
                momentum.mul_(settings.outer_momentum).add_(change)
                ahead = momentum * settings.outer_momentum
                change = ahead.add_(change) if settings.nesterov else momentum
            replica.anchor.add_(change * settings.outer_rate)
            if settings.mixing:
                mixed = torch.lerp(replica.anchor, replica.own.float(), settings.mixing)
                replica.own.copy_(mixed)
            else:
                replica.own.copy_(replica.anchor)


def open_diloco(training: Training) -> Strategy:
    """Open what the section `DiLoCo` says."""
    settings = training.config.strategy
    assert isinstance(settings, DiLoCo)
    sizes = settings.fragments, settings.overlap_steps
    return open_periodic(training, Outer(settings), Always(settings.every), *sizes)
