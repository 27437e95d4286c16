"""PushSum: ranks push shares of their values along a directed graph, and none of the mass is lost.

Kempe, Dobra and Gehrke, "Gossip-Based Computation of Aggregate Information", FOCS 2003. With shares
p_ji of which each sender's sum to 1, and a codec C whose payload c_i = C(x_i) all receivers decode:

    x_i <- x_i - (1 - p_ii) c_i + sum_j p_ij c_j

What a payload lacks stays with its sender, so the sum over all ranks does not change, but for
rounding, whatever is lost by compression. Where nothing is, x_i <- sum_j p_ij x_j. The aggregator's
"mean" is that; whoever pushes a weight alike divides by it.

Messages are neither lost nor repeated: a transport delivers one, or fails for all ranks. Who starts
again then must make mass and weights anew on all of them. A message that is on its way is its
receiver's already.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    Neighbours,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.scopes import ScopePayload
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec
from compressa.collectives.digraphs import Digraph
from compressa.parameters import Layout


class PushSum(Aggregator):
    """One push, to the receivers of the step's meeting.

    The values of an `exact` parameter are float64, each in the places of two float32: a weight by
    which all else is divided has to be as precise after many meetings as after one.

    Args:
        codec: What makes payloads.
        layout: The unit.
        world: Its graph is directed.
    """

    def __init__(self, codec: Codec, layout: Layout, world: World) -> None:
        graph = world.graph
        assert isinstance(graph, Digraph), "ranks push along a directed graph"
        self._rank = world.rank
        self._meetings = [
            (
                graph.kept(self._rank, m),
                graph.receivers(self._rank, m),
                graph.senders(self._rank, m),
            )
            for m in range(len(graph.meetings))
        ]
        scopes = whole_scopes(layout)
        self._exact = [scope.segment.parameter.exact for scope in scopes]
        self._scopes = ScopePayload(codec, layout.unit, scopes, world, feedback=None)
        self._payload = self._scopes.buffer()
        heard = max(len(senders) for _, _, senders in self._meetings)
        self._buffers = [self._scopes.buffer() for _ in range(heard)]
        self._decoded = list[torch.Tensor]()
        if codec.bias(layout.elems) == LOSSLESS:
            sizes = (scope.segment.elems for scope in scopes)
            self._decoded = [torch.empty(n, device=world.device) for n in sizes]

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One exchange."""
        size, exact = self._scopes.wire_bytes, self._scopes.exact
        peers = max(len(receivers) for _, receivers, _ in self._meetings)
        return (Round(Verb.NEIGHBOURS, torch.uint8, size, exact=exact, peers=peers),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Send what is pushed, and take in what comes."""
        kept, receivers, senders = self._meetings[context.step % len(self._meetings)]
        sent = self._scopes.encode(gradients, context, self._payload)
        incoming = dict(zip(senders, self._buffers, strict=False))
        received = yield Neighbours(sent, incoming, receivers)
        for peer in senders:
            self._scopes.check(received[peer], context, peer)
        if not self._decoded:
            self._scopes.decode_add(sent, gradients, kept - 1.0, context, self._rank)
            for peer, share in senders.items():
                self._scopes.decode_add(received[peer], gradients, share, context, peer)
            return
        values = self._wide(gradients)
        for x in values:
            x.mul_(kept)
        for peer, share in senders.items():
            self._scopes.decode(received[peer], self._decoded, context, peer)
            for x, came in zip(values, self._wide(self._decoded), strict=True):
                x.add_(came, alpha=share)

    def rollback(self, context: StepContext) -> None:
        """Nothing was taken from a residual."""

    def _wide(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pairs = zip(values, self._exact, strict=True)
        return [x.view(torch.float64) if exact else x for x, exact in pairs]
