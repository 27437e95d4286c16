"""Reducible: payloads that a plain all-reduce may sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.scope_coding import decode, encode, residuals_of
from compressa.codecs.base import Codec, Draw
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.errors import ConfigError
from compressa.parameters import Layout, Segment


class Reducible(Aggregator):
    """One all-reduce of values in the codec's wire dtype, divided by P before the sum.

    The values carry no header: they are summed on the way.
    """

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        if codec.reduce is None:
            raise ConfigError(
                f"{codec.name}: its payloads cannot be summed, so exchange.kind = "
                '"all_reduce" does not fit; use "auto", "all_gather" or "scatter_reduce"'
            )
        if feedback is not None and codec.reduce.dtype.itemsize < 4:
            raise ConfigError(
                f"{codec.name}: what the sum in {codec.reduce.dtype} rounds away is in no rank's "
                'residual, so exchange.kind = "all_reduce" does not fit error feedback; use '
                '"auto", or feedback.kind = "none"'
            )
        self._codec = codec
        self._world = world
        self._scopes = whole_scopes(layout)
        self._sizes = [codec.wire_bytes(scope.segment.elems) for scope in self._scopes]
        self._payload = torch.zeros(sum(self._sizes), dtype=torch.uint8, device=world.device)
        self._sent = torch.zeros_like(self._payload)
        self._values = self._payload.view(codec.reduce.dtype)
        self._scratch = Scratch(world.device)
        self._residuals = residuals_of(self._scopes, feedback, world)
        self._feedback = feedback

    @property
    def takes_half(self) -> bool:
        """Unless a velocity must be added to gradients."""
        return self._feedback is None or self._feedback.momentum is None

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum."""
        size = self._payload.numel()
        return (Round(Verb.ALL_REDUCE, self._values.dtype, size, dense=True),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Encode, sum, decode."""
        rooms = torch.split(self._payload, self._sizes)
        for scope, residual, room in zip(self._scopes, self._residuals, rooms, strict=True):
            x, draw = scope.of(gradients), self._draw(scope.segment, context)
            encode(self._codec, x, residual, room, draw, context)
        self._sent.copy_(self._payload)
        self._world.divide(self._values)
        yield AllReduce(DenseValues(self._values), self._scratch)
        for scope, room in zip(self._scopes, rooms, strict=True):
            decode(self._codec, room, scope.of(gradients), self._draw(scope.segment, context))

    def rollback(self, context: StepContext) -> None:
        """Decode what was sent and add it back."""
        rooms = torch.split(self._sent, self._sizes)
        for scope, residual, room in zip(self._scopes, self._residuals, rooms, strict=True):
            if residual is not None:
                sent = torch.empty(scope.segment.elems, device=room.device)
                self._codec.decode(room, sent, self._draw(scope.segment, context))
                residual.give_back(sent, context)

    def _draw(self, segment: Segment, context: StepContext) -> Draw:
        index = segment.parameter.index
        return Draw(self._world.seed, context.step, index, segment.start, self._world.rank)
