"""Gathered: every rank's payload goes to every rank, and all decode and average alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllGather,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs.base import Codec
from compressa.collectives.scratch import Scratch
from compressa.parameters import Layout


class Gathered(Aggregator):
    """One all-gather of payloads: out = 1/P * sum over ranks, in rank order, of decode(c_i).

    Loses nothing but what each rank's own encode leaves in its residual. Each rank sends its
    payload P - 1 times, so it pays for few ranks or large ratios.
    """

    joinable = True

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        self._world = world
        self._feedback = feedback
        self._scopes = ScopePayload(
            codec, layout.unit, whole_scopes(layout), world, feedback=feedback
        )
        self.waits = self._scopes.waits
        self._gathered, buffers = self._scopes.buffers()
        self._payload = self._sent = buffers[world.rank]
        self._incoming = {peer: buffers[peer] for peer in world.peers}
        self._scratch = Scratch(world.device)

    @property
    def quick(self) -> bool:
        """Where one kernel encodes a few values, and one decodes those of all ranks."""
        return self._scopes.quick

    @property
    def takes_half(self) -> bool:
        """Unless a velocity must be added to gradients."""
        return self._feedback is None or self._feedback.momentum is None

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One all-gather."""
        size, exact = self._scopes.wire_bytes, self._scopes.exact
        return (Round(Verb.ALL_GATHER, torch.uint8, size, exact=exact),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Encode, gather, decode and average."""
        self._sent = self._scopes.encode(gradients, context, self._payload)
        everyone = yield AllGather(self._sent, self._incoming, self._scratch, self._gathered)
        for sender in self._world.peers:
            self._scopes.check(everyone[sender], context, sender)
        payloads = list(map(everyone.__getitem__, range(self._world.size)))
        self._scopes.average(payloads, gradients, context)

    def rollback(self, context: StepContext) -> None:
        """Decode the own payload and add it back."""
        self._scopes.give_back(self._sent, context)
