"""Gossiped: a rank's values come nearer to those of its neighbours, of which it hears compressed.

With mixing weights w_ij, where nothing is lost (D-PSGD: Lian et al., "Can Decentralized Algorithms
Outperform Centralized Algorithms?", NeurIPS 2017):

    x_i <- sum_j w_ij x_j

and with a codec C (CHOCO-SGD: Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization
and Gossip Algorithms with Compressed Communication", ICML 2019), where all keep an estimate h_i of
each other's values, and each how far away its neighbours' are, n_i = sum_j w_ij (h_j - h_i):

    send c_i = C(x_i - h_i);  h_i <- h_i + c_i;  n_i <- n_i + sum_j w_ij (c_j - c_i)
    x_i <- x_i + n_i

What a message lacks is in the next difference, so that compressed ranks meet as others do. The
paper's step of consensus g is in the weights: (1 - g) I + g W is as good a matrix as W. The mean
over all ranks does not change, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    Merge,
    Neighbours,
    Round,
    Rounds,
    Scope,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import scratch_tensor
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec
from compressa.codecs.shrunk import contraction_of
from compressa.collectives.graphs import Graph
from compressa.parameters import Layout

ESTIMATE, DISTANCE = "gossip_estimate", "gossip_distance"


class Gossiped(Aggregator):
    """One exchange with neighbours.

    State, unless the codec loses nothing: "gossip_estimate/<name>", h_i, and
    "gossip_distance/<name>", n_i, both float32. Whoever sets one of them sets both, on all ranks:
    where all estimates are the same, distances are zero.

    Args:
        codec: A contraction, or unbiased, and scaled to be one then.
        layout: The unit.
        world: Its graph says who the neighbours are.
    """

    def __init__(self, codec: Codec, layout: Layout, world: World) -> None:
        assert isinstance(world.graph, Graph), "ranks have neighbours"
        codec = contraction_of(codec)
        self._world = world
        self._weights = world.graph.neighbours(world.rank)
        self._own_weight = world.graph.weights[world.rank][world.rank]
        scopes = whole_scopes(layout)
        self._scopes = ScopePayload(codec, layout.unit, scopes, world, feedback=None)
        self._lossless = codec.bias(layout.elems) == LOSSLESS
        self._estimate = self._distance = list[torch.Tensor]()
        if not self._lossless:
            self._estimate = [_part(scope, world, ESTIMATE) for scope in scopes]
            self._distance = [_part(scope, world, DISTANCE) for scope in scopes]
        self._payload = self._scopes.buffer()
        self._incoming = {peer: self._scopes.buffer() for peer in self._weights}

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One exchange."""
        size, exact = self._scopes.wire_bytes, self._scopes.exact
        peers = len(self._weights)
        return (Round(Verb.NEIGHBOURS, torch.uint8, size, exact=exact, peers=peers),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Send values, or how far they are from the estimate; go nearer to the neighbours'."""
        sends = gradients if self._lossless else self._differences(gradients)
        sent = self._scopes.encode(sends, context, self._payload)
        received = yield Neighbours(sent, self._incoming, self._weights)
        for peer in self._weights:
            self._scopes.check(received[peer], context, peer)
        if self._lossless:
            for x in gradients:
                x.mul_(self._own_weight)
            for peer, weight in self._weights.items():
                self._scopes.decode_add(received[peer], gradients, weight, context, peer)
            return
        rank = self._world.rank
        self._scopes.decode_add(sent, self._estimate, 1.0, context, rank)
        self._scopes.decode_add(sent, self._distance, self._own_weight - 1.0, context, rank)
        for peer, weight in self._weights.items():
            self._scopes.decode_add(received[peer], self._distance, weight, context, peer)
        for x, distance in zip(gradients, self._distance, strict=True):
            x.add_(distance)

    def rollback(self, context: StepContext) -> None:
        """Nothing was taken: estimates follow whatever was sent."""

    def _differences(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return how far values are from the estimate, in memory of this thread."""
        flat = scratch_tensor("gossip", self._scopes.elems, torch.float32, self._world.device)
        parts = list(torch.split(flat, [estimate.numel() for estimate in self._estimate]))
        for part, x, estimate in zip(parts, values, self._estimate, strict=True):
            torch.sub(x, estimate, out=part)
        return parts


def _part(scope: Scope, world: World, kind: str) -> torch.Tensor:
    parameter = scope.segment.parameter
    whole = world.state.vector(kind, parameter, parameter.elems, Merge.FIRST)
    return whole[scope.segment.start : scope.segment.stop]
