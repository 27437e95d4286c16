"""Momentum before selection, as deep gradient compression corrects it (Lin et al., ICLR 2018).

    u = m u + g;  v = v + u;  send c = C(v);  v = v - decode(c);  u = 0 where c is not zero

Momentum that is applied to what arrives would be wrong for elements that wait: each step's share
would lose its factor. So each rank keeps a velocity u of its own, adds it to its residual v, and
starts anew where it has sent (factor masking). The optimizer must have no momentum then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Lt

from compressa.aggregators.base import Merge, State, StepContext
from compressa.arrays import scratch_tensor, surely_finite
from compressa.codecs.base import Codec, Draw
from compressa.errors import ConfigError
from compressa.parameters import Segment


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Hyper-parameters.

    Args:
        factor: m.
        masking: Whether u starts anew where something was sent.
        clip_norm: The norm to which each parameter's gradient is cut before it is added, times
            P^-1/2 for P ranks; None to cut nothing.
    """

    factor: Annotated[float, Gt(0), Lt(1)] = 0.9
    masking: bool = True
    clip_norm: Annotated[float, Gt(0)] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.factor < 1:
            raise ConfigError(f"momentum: factor must be between 0 and 1, not {self.factor}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"momentum: clip_norm must be positive, not {self.clip_norm}")


class Velocity:
    """The velocity of one scope: float32, unscaled, "momentum/<name>" in the state.

    What a payload clears is remembered until the next one, for a step that is skipped: on a CPU
    those values; on a GPU, where to count them is to wait, all of the velocity.

    Args:
        segment: The scope.
        rule: Hyper-parameters.
        state: This rank's state.
        ranks: Number of ranks.
    """

    def __init__(self, segment: Segment, rule: Momentum, state: State, ranks: int) -> None:
        parameter = segment.parameter
        whole = state.vector("momentum", parameter, parameter.elems, Merge.SUM)
        self._u = whole[segment.start : segment.stop]
        self._rule = rule
        self._limit = math.inf if rule.clip_norm is None else rule.clip_norm / math.sqrt(ranks)
        self._accumulated: torch.Tensor | None = None  # whether; None where it surely was
        self._cleared = self._u[:0]

    def accumulate(self, x: torch.Tensor, context: StepContext) -> None:
        """Replace a gradient by the velocity, both times the loss scale.

        Where it would not be finite, the velocity of the whole scope stays as it was.

        Args:
            x: float32, 1-D, contiguous, as long as the scope; overwritten.
            context: The step; has the loss scale.
        """
        if self._limit < math.inf:
            self._clip(x, context)
        x.add_(self._u, alpha=self._rule.factor * context.loss_scale)
        if surely_finite(x):
            self._accumulated = None
            torch.mul(x, 1.0 / context.loss_scale, out=self._u)
        else:
            self._accumulated = x.isfinite().all()
            torch.where(self._accumulated, x * (1.0 / context.loss_scale), self._u, out=self._u)

    def mask(self, codec: Codec, payload: torch.Tensor, draw: Draw) -> None:
        """Start anew where the payload sends something.

        Args:
            codec: What encoded it.
            payload: uint8, of this scope alone.
            draw: Counter of its random bits.
        """
        self._cleared = self._u[:0]
        if not self._rule.masking:
            return
        sent = scratch_tensor("velocity sent", self._u.numel(), torch.float32, self._u.device)
        codec.decode(payload, sent, draw)
        where = self._where(sent)
        if self._accumulated is not None:
            where.logical_and_(self._accumulated)
        self._cleared = self._u.clone() if where.is_cuda else self._u[where]
        self._u.masked_fill_(where, 0.0)

    def give_back(self, sent: torch.Tensor) -> None:
        """Undo the last `mask`, since what was sent comes back to the residual.

        Args:
            sent: float32, 1-D, as decoded; as long as the scope.
        """
        if not self._cleared.numel():
            return
        where = self._where(sent)
        if where.is_cuda:
            torch.where(where, self._cleared, self._u, out=self._u)
        else:
            self._u.masked_scatter_(where, self._cleared)
        self._cleared = self._u[:0]

    def _clip(self, x: torch.Tensor, context: StepContext) -> None:
        """Cut a gradient to the largest norm, if it has a norm; no GPU is waited for."""
        norm = torch.linalg.vector_norm(x)
        if x.is_cuda:
            norm = norm.double() / context.loss_scale
            too_long = (norm > self._limit) & norm.isfinite()
            x.mul_(torch.where(too_long, self._limit / norm, 1.0).float())
            return
        length = float(norm) / context.loss_scale
        if self._limit < length < math.inf:
            x.mul_(self._limit / length)

    def _where(self, sent: torch.Tensor) -> torch.Tensor:
        where = scratch_tensor("velocity where", sent.numel(), torch.bool, sent.device)
        return torch.ne(sent, 0.0, out=where)
