"""Flush: residuals that nobody keeps any more go with the next gradient.

    g = g + e;  e = 0

before what is in force averages g. A skipped step puts e back, and the next one takes it up again.
A residual waits where the gradient is not finite, or its parameter may be unused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.aggregators.base import Aggregator, Round, Rounds, State, StepContext, held_back
from compressa.parameters import Layout


class Flush(Aggregator):
    """An aggregator that is given residuals besides the gradients, until none is left.

    Args:
        inner: What averages.
        residuals: By segment of the unit, as float32.
    """

    def __init__(self, inner: Aggregator, residuals: Mapping[int, torch.Tensor]) -> None:
        self._inner = inner
        self._residuals = dict(residuals)
        self._left = set(residuals)
        self._taken: dict[int, torch.Tensor] = {}

    @property
    def values_dtype(self) -> torch.dtype:
        """The inner one's."""
        return self._inner.values_dtype

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The inner one's."""
        return self._inner.rounds

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Add what is left, then average."""
        self._taken = {}
        for i in sorted(self._left):
            gradient, residual = gradients[i], self._residuals[i]
            # Waits for a GPU; but for a step or two after a switch, nothing is left.
            if not residual.any():  # adding zeros would turn -0 into +0
                self._left.remove(i)
                continue
            if held_back(gradient, context):
                continue
            self._taken[i] = residual.clone()
            _add(gradient, residual, context)
            if not residual.any():
                self._left.remove(i)
        yield from self._inner.run(gradients, context)

    def rollback(self, context: StepContext) -> None:
        """Put back what was added."""
        self._inner.rollback(context)
        for i, taken in self._taken.items():
            self._residuals[i].copy_(taken)
            self._left.add(i)
        self._taken = {}


def stale_residuals(layout: Layout, state: State) -> dict[int, torch.Tensor]:
    """Return the residuals that no aggregator has asked for, float32, by segment of a unit.

    Args:
        layout: The unit.
        state: This rank's; names in `claimed` have an owner, and stay there.
    """
    stale = {}
    for i, segment in enumerate(layout.segments):
        key = f"residual/{segment.parameter.name}"
        if key in state.vectors and key not in state.claimed:
            stale[i] = state.residual(segment.parameter)[segment.start : segment.stop]
            state.claimed.discard(key)
    return stale


def _add(gradient: torch.Tensor, residual: torch.Tensor, context: StepContext) -> None:
    """Add a residual to a gradient where the sum is finite, and keep the rest."""
    whole = torch.add(gradient, residual, alpha=context.loss_scale).to(gradient.dtype)
    finite = whole.isfinite()
    torch.where(finite, whole, gradient, out=gradient)
    residual.masked_fill_(finite, 0.0)
