"""HopResiduals: the residuals of a unit whose messages are encoded at every hop.

    v = s (g + d e), the loss scale s times what a rank puts into the sum;  e = (1 - beta) d e
    for each message that this rank makes:  e = e + beta (v - decode(c)) / s, v as it is by then

so a rank keeps what its own messages lose, also of what others have put in. With d = `decay` and
beta = `beta` both 1, what is in the sum and what is in the residuals is what was put in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import Scope, StepContext, World, held_back
from compressa.aggregators.feedback import FeedbackRule, OwnedResidual, Residual
from compressa.arrays import surely_finite
from compressa.parameters import Layout, Segment


class HopResiduals:
    """The residuals of a unit's segments.

    They are float32 while a step is under way, whatever the rule keeps them as. Besides, a rank
    remembers what it has put in, until the next step: a step that is skipped gives that back.

    Args:
        layout: The unit.
        rule: How residuals are kept; its `owner` says whether what is lost in sharing is kept too.
        world: Has the state.

    Attributes:
        rule: As given.
    """

    def __init__(self, layout: Layout, rule: FeedbackRule, world: World) -> None:
        self.rule = rule
        self._segments = [_OfSegment(segment, rule, world) for segment in layout.segments]

    def begin(self, gradients: Sequence[torch.Tensor], context: StepContext) -> None:
        """Add the residuals to a step's gradients; before the first `keep`.

        What stays in them is the 1 - beta of the module's formula.

        Args:
            gradients: One per segment, 1-D, contiguous, float32, with the loss scale; in place.
            context: The step. Where it holds zeros, a gradient of zeros leaves its residual alone.
        """
        for own, x in zip(self._segments, gradients, strict=True):
            own.begin(x, context)

    def keep(self, scope: Scope, lost: torch.Tensor) -> None:
        """Add what the message of a scope has lost.

        Args:
            scope: Of a segment of the unit.
            lost: float32, 1-D, unscaled, as long as the scope.
        """
        errors = self._segments[scope.gradient].errors
        part = errors[scope.start : scope.start + scope.segment.elems]
        part.add_(lost, alpha=self.rule.beta)

    def end(self, sums: Sequence[torch.Tensor]) -> None:
        """Settle the step: where a sum is not finite, each rank keeps what it has put in.

        Args:
            sums: What became of the gradients of `begin`, before they are divided.
        """
        for own, x in zip(self._segments, sums, strict=True):
            own.end(x)

    def rollback(self) -> None:
        """Keep what a skipped step would have left had nothing arrived."""
        for own in self._segments:
            own.owned.restore()


class _OfSegment:
    """The residual of one segment.

    Attributes:
        owned: Remembers what was put in.
        errors: What is kept so far, float32, while a step is under way.
    """

    def __init__(self, segment: Segment, rule: FeedbackRule, world: World) -> None:
        self._residual = Residual(segment, rule, world.state, world.size)
        self.owned = OwnedResidual(self._residual, segment.elems)
        narrow = rule.dtype != "float32"
        self._wide = torch.empty(segment.elems if narrow else 0, device=world.device)
        self.errors = self._wide

    def begin(self, x: torch.Tensor, context: StepContext) -> None:
        """Add the residual to a gradient, unless it must wait."""
        held = held_back(x, context)
        self.owned.absorb(x, context, held=held)
        left = self._residual.reopen(context, raw=held)
        if not held:
            left.mul_(1.0 - self._residual.rule.beta)
        self.errors = left if self._residual.rule.dtype == "float32" else self._wide.copy_(left)

    def end(self, x: torch.Tensor) -> None:
        """Keep what was lost."""
        if not surely_finite(x):
            torch.where(x.isfinite(), self.errors, self.owned.kept, out=self.errors)
        self._residual.close(self.errors)
        self.errors = self._wide  # the state's memory is not this object's to keep
