"""FeedbackRule: how what was not sent is kept; Residual and OwnedResidual: where it is applied.

    p = g + d e;  send c = C(p);  e = (1 - beta) d e + beta (p - decode(c))

with d = `decay` and beta = `beta`, both 1 unless asked otherwise: then e = p - decode(c), and
nothing is lost. Beta < 1 is LoCo's moving average (Xie et al., 2024). A residual that is kept as
float32 is worked on where it is, in the codec's own pass. Another is expanded into memory that
the thread keeps for all its scopes, and narrowed afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le

from compressa.aggregators import narrow
from compressa.aggregators.base import State, StepContext
from compressa.aggregators.momentum import Momentum, Velocity
from compressa.arrays import as_array, scratch_tensor, surely_finite
from compressa.codecs.base import Codec, Draw
from compressa.errors import ConfigError
from compressa.kernels.feedback import absorb_residual
from compressa.parameters import Segment


@dataclass(frozen=True, kw_only=True)
class FeedbackRule:
    """How the residuals of a codec are kept.

    Args:
        owner: In a scatter-reduce, also keep the error of the owner's encode of the mean.
        dtype: What residuals are kept as: "float32", "bfloat16" or "int8" (with a scale for each
            block of 256).
        decay: What a residual is multiplied by before it is added.
        beta: Share of the new error in the residual; 1 for all of it.
        reset_steps: The residual is dropped in every so manieth step; 0 for never.
        momentum: What is accumulated in place of the gradient; None for the gradient itself.

    Raises:
        ConfigError: A number is out of its range.
    """

    owner: bool = True
    dtype: narrow.Width = "float32"
    decay: Annotated[float, Ge(0), Le(1)] = 1.0
    beta: Annotated[float, Gt(0), Le(1)] = 1.0
    reset_steps: Annotated[int, Ge(0), Le(1 << 53)] = 0
    momentum: Momentum | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"feedback: decay must be from 0 to 1, not {self.decay}")
        if not 0 < self.beta <= 1:
            raise ConfigError(f"feedback: beta must be above 0 and at most 1, not {self.beta}")
        if self.reset_steps < 0:
            raise ConfigError(f"feedback: reset_steps must not be negative: {self.reset_steps}")

    @property
    def conserves_mass(self) -> bool:
        """Whether what was not delivered is in the residuals, to the rounding of float32."""
        whole = self.decay == self.beta == 1.0 and not self.reset_steps
        return self.owner and whole and self.dtype == "float32" and self.momentum is None

    @property
    def block_elems(self) -> int:
        """Parts of a residual that are worked on apart begin at multiples of this."""
        return narrow.BLOCK_ELEMS if self.dtype == "int8" else 1

    def resets(self, context: StepContext) -> bool:
        """Whether the residual is dropped in this step."""
        return self.reset_steps > 0 and context.step > 0 and context.step % self.reset_steps == 0


class Residual:
    """The residual of one scope, kept by a rule.

    Args:
        segment: The scope.
        rule: The rule.
        state: This rank's state; all that the rule needs is allocated now.
        ranks: Number of ranks.
    """

    def __init__(self, segment: Segment, rule: FeedbackRule, state: State, ranks: int) -> None:
        self.rule = rule
        self._segment = segment
        self._state = state
        self._velocity = rule.momentum and Velocity(segment, rule.momentum, state, ranks)
        state.residual(segment.parameter, rule.dtype)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._state.device

    def encode(
        self, codec: Codec, x: torch.Tensor, room: torch.Tensor, draw: Draw, context: StepContext
    ) -> int:
        """Encode a gradient with what was kept, and keep what is lost now.

        Args:
            codec: What encodes.
            x: The scope's gradient, times the loss scale; float32, or 16 bits if the codec takes
                them and there is no momentum. A velocity overwrites it.
            room: uint8, `codec.wire_bytes` long; receives the payload.
            draw: Counter of the random bits.
            context: The step.

        Returns:
            The payload's length in bytes.
        """
        if self._velocity:
            self._velocity.accumulate(x, context)
        values = self.open(context)
        before = self.before(values)
        length = codec.encode_feedback(x, values, room, draw, context.loss_scale)
        self.blend(before, values)
        self.close(values)
        if self._velocity:
            self._velocity.mask(codec, room[:length], draw)
        return length

    def give_back(self, sent: torch.Tensor, context: StepContext) -> None:
        """Add decoded values that were sent; what overflowed was never kept.

        Args:
            sent: float32, as decoded, times the loss scale; overwritten.
            context: The step that is undone.
        """
        if self._velocity:
            self._velocity.give_back(sent)
        sent.mul_(self.rule.beta / context.loss_scale)
        values = self.reopen(context, raw=True)
        values.add_(torch.where(sent.isfinite(), sent, 0.0))
        self.close(values)

    def open(self, context: StepContext) -> torch.Tensor:
        """Return what is added in this step: float32, 1-D, unscaled, as long as the segment.

        Args:
            context: The step; to be called once in it.
        """
        values = self._values()
        return self._aged(values, context)

    def reopen(self, context: StepContext, *, raw: bool) -> torch.Tensor:
        """Return what `open` returned in this step, float32, 1-D, as long as the segment.

        Args:
            context: The step.
            raw: Whether to return what is kept, as it is, instead.
        """
        values = self._values()
        in_place = self.rule.dtype == "float32"
        return values if raw or in_place else self._aged(values, context)

    def blank(self) -> torch.Tensor:
        """Return zeros in place of what is kept."""
        values = self._kept() if self.rule.dtype == "float32" else self._scratch()
        return values.zero_()

    def close(self, values: torch.Tensor) -> None:
        """Keep values that `open`, `reopen` or `blank` returned, or others.

        Args:
            values: float32, 1-D, as long as the segment, unscaled; rounded to what is kept.
        """
        kept = self._state.residual(self._segment.parameter, self.rule.dtype)
        if self.rule.dtype != "float32" or values.data_ptr() != self._kept().data_ptr():
            narrow.write(kept, self._segment.start, values)

    def before(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return a copy for `blend`, if the rule blends: float32, in memory that the thread keeps.

        Args:
            values: float32, 1-D, as `open` returned them. The next copy overwrites this one.
        """
        if self.rule.beta == 1.0:
            return None
        copy = scratch_tensor("residual before", values.numel(), torch.float32, values.device)
        return copy.copy_(values)

    def blend(self, before: torch.Tensor | None, values: torch.Tensor) -> None:
        """Make values the moving average of what they were and what they are, with weight `beta`.

        Args:
            before: What `before` returned; None if the rule does not blend, and nothing is done.
            values: float32, 1-D, as long; overwritten.
        """
        if before is not None:
            torch.lerp(before, values, self.rule.beta, out=values)

    def _values(self) -> torch.Tensor:
        if self.rule.dtype == "float32":
            return self._kept()
        values = self._scratch()
        kept = self._state.residual(self._segment.parameter, self.rule.dtype)
        narrow.read(kept, self._segment.start, values)
        return values

    def _aged(self, values: torch.Tensor, context: StepContext) -> torch.Tensor:
        if self.rule.resets(context):
            return values.zero_()
        return values if self.rule.decay == 1.0 else values.mul_(self.rule.decay)

    def _kept(self) -> torch.Tensor:
        whole = self._state.residual(self._segment.parameter)
        return whole[self._segment.start : self._segment.stop]

    def _scratch(self) -> torch.Tensor:
        return scratch_tensor("residual", self._segment.elems, torch.float32, self._state.device)


class OwnedResidual:
    """The residual of a part of a gradient whose mean this rank computes and shares.

    Its own contribution is exact, so what is kept is the error r of the mean, as P r.

    Args:
        residual: Where it is kept.
        elems: Number of elements.
    """

    def __init__(self, residual: Residual, elems: int) -> None:
        self._residual = residual
        self._kept = torch.zeros(elems, device=residual.device)
        self._held = False

    def lend(self) -> None:
        """Have one pass do `absorb` and `encode` in this step, which nothing holds back."""
        self._held = False

    def absorb(self, x: torch.Tensor, context: StepContext, *, held: bool) -> None:
        """Add the residual to the own gradient, and note what to keep if the step fails.

        Args:
            x: The gradient.
            context: The step.
            held: Whether the residual must wait.
        """
        self._held = held
        if held:
            self._kept.copy_(self._residual.reopen(context, raw=True))
            return
        values = self._residual.open(context)
        arrays = as_array(x), as_array(values), as_array(self._kept)
        absorb_residual(*arrays, context.loss_scale)
        if self._residual.rule.beta < 1.0:
            torch.lerp(values, self._kept, self._residual.rule.beta, out=self._kept)

    def encode(
        self,
        codec: Codec,
        mean: torch.Tensor,
        room: torch.Tensor,
        draw: Draw,
        context: StepContext,
        ranks: int,
    ) -> int:
        """Encode the mean, and keep its error times the number of ranks, unscaled.

        Args:
            codec: What encodes.
            mean: float32, times the loss scale.
            room: uint8, `codec.wire_bytes` long; receives the payload.
            draw: Counter of the random bits.
            context: The step.
            ranks: How many they are.

        Returns:
            The payload's length in bytes.
        """
        residual, before = self._residual, None
        if residual.rule.beta < 1.0:
            before = residual.before(residual.reopen(context, raw=self._held))
        values = residual.blank()
        if residual.rule.owner:
            # (mean - decoded) * P / loss_scale
            length = codec.encode_feedback(mean, values, room, draw, context.loss_scale / ranks)
        else:
            length = codec.encode(mean, room, draw)
        if self._held:
            values.add_(self._kept)
        residual.blend(before, values)
        if not self._held and not surely_finite(mean):
            torch.where(mean.isfinite(), values, self._kept, out=values)
        residual.close(values)
        return length

    @property
    def kept(self) -> torch.Tensor:
        """What `restore` keeps: the own part where it is finite, else the residual as it was."""
        return self._kept

    def restore(self) -> None:
        """Keep what a skipped step would have left had nothing arrived."""
        self._residual.close(self._kept)
