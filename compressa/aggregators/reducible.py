"""Reducible: payloads that a plain all-reduce may sum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    Scope,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.multi_tensor import adds_in_one_pass
from compressa.aggregators.scope_calls import Call, ScopeCalls
from compressa.aggregators.scope_coding import decode, encode, residuals_of
from compressa.codecs.base import Codec, Draw
from compressa.codecs.fused import Ways
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.errors import ConfigError
from compressa.parameters import Layout, Segment


class Reducible(Aggregator):
    """One all-reduce of values in the codec's wire dtype, divided by P before the sum.

    The values carry no header: they are summed on the way.
    """

    joinable = True

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
        self.waits = codec.fused.ways is None  # whatever others' codecs do
        self._world = world
        self._scopes = whole_scopes(layout)
        self._sizes = [codec.wire_bytes(scope.segment.elems) for scope in self._scopes]
        self._payload = torch.zeros(sum(self._sizes), dtype=torch.uint8, device=world.device)
        self._sent = torch.zeros_like(self._payload)
        self._values = self._payload.view(codec.reduce.dtype)
        self._scratch = Scratch(world.device)
        self._residuals = residuals_of(self._scopes, feedback, world)
        self._feedback = feedback
        self._calls = ScopeCalls(world.device)

    @property
    def takes_half(self) -> bool:
        """Whether `run` takes 16 bits too: yes, unless a velocity must be added to gradients."""
        return self._feedback is None or self._feedback.momentum is None

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum."""
        size = self._payload.numel()
        return (Round(Verb.ALL_REDUCE, self._values.dtype, size, dense=True),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Encode, sum, decode."""
        rooms, ways = torch.split(self._payload, self._sizes), self._ways(gradients)
        if ways is not None and adds_in_one_pass(self._feedback, context):
            self._calls.run(None, lambda: self._encoding(ways, gradients, rooms, context))
        else:
            for scope, residual, room in zip(self._scopes, self._residuals, rooms, strict=True):
                x, draw = scope.of(gradients), self._draw(scope.segment, context)
                encode(self._codec, x, residual, room, draw, context)
        self._sent.copy_(self._payload)
        self._world.divide(self._values)
        yield AllReduce(DenseValues(self._values), self._scratch)
        if ways is not None and all(x.dtype is torch.float32 for x in gradients):
            self._calls.run(None, lambda: self._decoding(ways, gradients, rooms, context))
            return
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

    def _ways(self, gradients: Sequence[torch.Tensor]) -> Ways | None:
        """By which all scopes go together: on a GPU, if there are any for such gradients."""
        half = any(x.dtype is not torch.float32 for x in gradients)
        if self._world.device.type == "cpu" or (half and not self._codec.takes_half):
            return None
        return self._codec.fused.ways

    def _encoding(
        self,
        ways: Ways,
        gradients: Sequence[torch.Tensor],
        rooms: Sequence[torch.Tensor],
        context: StepContext,
    ) -> list[Call]:
        loss_scale = 1.0 if self._feedback is None else context.loss_scale
        state, kept = self._world.state, self._feedback is not None
        array = self._calls.array
        return [
            partial(
                ways.encode,
                array(scope.of(gradients)),
                array(room),
                array(scope.residual(state)) if kept else None,
                self._draw(scope.segment, context),
                loss_scale,
            )
            for scope, room in zip(self._scopes, rooms, strict=True)
        ]

    def _decoding(
        self,
        ways: Ways,
        gradients: Sequence[torch.Tensor],
        rooms: Sequence[torch.Tensor],
        context: StepContext,
    ) -> list[Call]:
        def decode(scope: Scope, room: torch.Tensor) -> None:
            out = self._calls.array(scope.of(gradients))
            draw = self._draw(scope.segment, context)
            ways.put(ways.read(self._calls.array(room), out.size, draw), out, 1.0, False)

        return [partial(decode, *each) for each in zip(self._scopes, rooms, strict=True)]

    def _draw(self, segment: Segment, context: StepContext) -> Draw:
        index = segment.parameter.index
        return Draw(self._world.seed, context.step, index, segment.start, self._world.rank)
