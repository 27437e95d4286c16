"""Scope: a run of elements of a unit that is compressed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compressa.aggregators.base import State
from compressa.parameters import Layout, Segment


@dataclass(frozen=True)
class Scope:
    """Part of one of the unit's gradients, compressed alone.

    Attributes:
        gradient: Index of the gradient in the unit.
        start: First element in that gradient.
        segment: The same part as a segment of its parameter.
    """

    gradient: int
    start: int
    segment: Segment

    def of(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return this scope's values."""
        whole = gradients[self.gradient]
        if whole.numel() == self.segment.elems:
            return whole
        return whole[self.start : self.start + self.segment.elems]

    def residual(self, state: State) -> torch.Tensor:
        """Return this scope's part of its parameter's residual."""
        whole = state.residual(self.segment.parameter)
        return whole[self.segment.start : self.segment.stop]


def whole_scopes(layout: Layout) -> tuple[Scope, ...]:
    """One scope for each segment."""
    return tuple(Scope(i, 0, segment) for i, segment in enumerate(layout.segments))
