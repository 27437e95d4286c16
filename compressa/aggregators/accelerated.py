"""Accelerated: an aggregator that is given velocities instead of gradients.

For parameters that travel without error feedback beside others with momentum correction: each rank
keeps u = m u + g, and the mean of u arrives. Nothing is masked, since nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import Aggregator, Round, Rounds, StepContext, World, held_back
from compressa.aggregators.momentum import Momentum, Velocity
from compressa.arrays import scratch_tensor
from compressa.parameters import Layout


class Accelerated(Aggregator):
    """Plain momentum before the mean.

    Args:
        inner: Computes the mean.
        rule: Hyper-parameters.
        layout: The unit.
        world: Ranks and state.
    """

    def __init__(self, inner: Aggregator, rule: Momentum, layout: Layout, world: World) -> None:
        self._inner = inner
        self.joinable, self.waits = inner.joinable, inner.waits
        self._velocities = [
            Velocity(segment, rule, world.state, world.size) for segment in layout.segments
        ]

    @property
    def values_dtype(self) -> torch.dtype:
        """The inner one's."""
        return self._inner.values_dtype

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The inner one's."""
        return self._inner.rounds

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Accumulate, then average."""
        for gradient, velocity in zip(gradients, self._velocities, strict=True):
            if not held_back(gradient, context):
                self._accumulate(velocity, gradient, context)
        yield from self._inner.run(gradients, context)

    def rollback(self, context: StepContext) -> None:
        """Velocities go on from the skipped step's, as residuals do."""
        self._inner.rollback(context)

    @staticmethod
    def _accumulate(velocity: Velocity, gradient: torch.Tensor, context: StepContext) -> None:
        if gradient.dtype is torch.float32:
            velocity.accumulate(gradient, context)
            return
        elems, device = gradient.numel(), gradient.device
        x = scratch_tensor("velocity input", elems, torch.float32, device)
        velocity.accumulate(x.copy_(gradient), context)
        gradient.copy_(x)
