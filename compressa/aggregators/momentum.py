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

import numpy as np
import torch
from annotated_types import Gt, Lt

from compressa.aggregators.base import Merge, State, Turn
from compressa.codecs.base import Codec, Draw
from compressa.errors import ConfigError
from compressa.kernels.feedback import all_finite
from compressa.kernels.scratch import scratch
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
        self._accumulated = False
        self._cleared = torch.empty(0)

    def accumulate(self, x: torch.Tensor, turn: Turn) -> None:
        """Replace a gradient by the velocity, both times the loss scale.

        Where it would not be finite, the velocity of the whole scope stays as it was.
        """
        if self._limit < math.inf:
            norm = float(torch.linalg.vector_norm(x)) / turn.loss_scale
            if self._limit < norm < math.inf:
                x.mul_(self._limit / norm)
        x.add_(self._u, alpha=self._rule.factor * turn.loss_scale)
        self._accumulated = all_finite(x.numpy())
        if self._accumulated:
            torch.mul(x, 1.0 / turn.loss_scale, out=self._u)

    def mask(self, codec: Codec, payload: torch.Tensor, draw: Draw) -> None:
        """Start anew where the payload sends something."""
        self._cleared = self._u[:0]
        if not (self._accumulated and self._rule.masking):
            return
        sent = torch.from_numpy(scratch("velocity sent", self._u.numel(), np.float32))
        codec.decode(payload, sent, draw)
        where = self._where(sent)
        self._cleared = self._u[where]
        self._u.masked_fill_(where, 0.0)

    def give_back(self, sent: torch.Tensor) -> None:
        """Undo `mask`: what was sent comes back to the residual."""
        if self._cleared.numel():
            self._u.masked_scatter_(self._where(sent), self._cleared)
            self._cleared = self._u[:0]

    def _where(self, sent: torch.Tensor) -> torch.Tensor:
        where = torch.from_numpy(scratch("velocity where", sent.numel(), np.bool_))
        return torch.ne(sent, 0.0, out=where)
