"""The exchange of EF21: every rank sends the change of its estimate, and all keep the mean of them.

Each rank i has an estimate h_i of its gradient, and every rank the mean h of all:

    d_i = g_i - h_i;  send c_i = C(d_i);  h_i = h_i + decode(c_i);  h = h + 1/P sum_i decode(c_i)

and h is what arrives. Where a decoded value of some rank is not finite, no estimate changes, and a
NaN arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllGather,
    Merge,
    Round,
    Rounds,
    Scope,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import scratch_tensor, surely_finite
from compressa.codecs.base import Codec
from compressa.collectives.scratch import Scratch
from compressa.parameters import Layout


class Estimated(Aggregator):
    """One all-gather of compressed changes.

    State: "ef21/<name>", the rank's own estimate, and "ef21_mean/<name>", the mean of all, both
    float32 and unscaled.

    Args:
        codec: A contraction.
        layout: The unit.
        world: Ranks and state.
    """

    def __init__(self, codec: Codec, layout: Layout, world: World) -> None:
        self._world = world
        self._codec = codec
        scopes = whole_scopes(layout)
        self._scopes = ScopePayload(codec, layout.unit, scopes, world, feedback=None)
        self._own = [_part(scope, world, "ef21", Merge.SUM) for scope in scopes]
        self._mean = [_part(scope, world, "ef21_mean", Merge.FIRST) for scope in scopes]
        self._gathered, buffers = self._scopes.buffers()
        self._payload = buffers[world.rank]
        self._incoming = {peer: buffers[peer] for peer in world.peers}
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One all-gather."""
        size, exact = self._scopes.wire_bytes, self._scopes.exact
        return (Round(Verb.ALL_GATHER, torch.uint8, size, exact=exact),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Encode the change, gather, and follow."""
        for gradient, own in zip(gradients, self._own, strict=True):
            gradient.mul_(1.0 / context.loss_scale).sub_(own)
        sent = self._scopes.encode(gradients, context, self._payload)
        everyone = yield AllGather(sent, self._incoming, self._scratch, self._gathered)
        for sender in self._world.peers:
            self._scopes.check(everyone[sender], context, sender)
        for gradient in gradients:
            gradient.zero_()
        for sender in range(self._world.size):
            weight = 1.0 / self._world.size
            self._scopes.decode_add(everyone[sender], gradients, weight, context, sender)
        moved = self._decoded(sent, context)
        for gradient, own, mean, own_change in zip(
            gradients, self._own, self._mean, moved, strict=True
        ):
            self._follow(gradient, own, mean, own_change)
            gradient.mul_(context.loss_scale)

    def rollback(self, context: StepContext) -> None:
        """Nothing was taken: estimates follow the gradient also through a skipped step."""

    def _decoded(self, payload: torch.Tensor, context: StepContext) -> list[torch.Tensor]:
        """Return what a rank's own payload decodes to, in memory of this thread."""
        flat = scratch_tensor("ef21", self._scopes.elems, torch.float32, payload.device)
        parts = list(torch.split(flat, [own.numel() for own in self._own]))
        for part in parts:
            part.zero_()
        self._scopes.decode_add(payload, parts, 1.0, context, self._world.rank)
        return parts

    @staticmethod
    def _follow(
        change: torch.Tensor, own: torch.Tensor, mean: torch.Tensor, own_change: torch.Tensor
    ) -> None:
        """Move both estimates where all is finite; the change becomes what arrives."""
        change.add_(mean)
        own_change.add_(own)
        if surely_finite(change):
            own.copy_(own_change)
            mean.copy_(change)
            return
        finite = change.isfinite()
        torch.where(finite, own_change, own, out=own)
        torch.where(finite, change, mean, out=mean)


def _part(scope: Scope, world: World, kind: str, merge: Merge) -> torch.Tensor:
    parameter = scope.segment.parameter
    whole = world.state.vector(kind, parameter, parameter.elems, merge)
    return whole[scope.segment.start : scope.segment.stop]
