"""Scattered: scatter-reduce-all-gather, the compressed mean for any number of ranks.

Each rank encodes the shard of every other rank and sends it there; the owner decodes, adds
its own values exactly, averages, encodes the mean once, and shares it. Bytes per rank are
2 (P-1)/P of one payload, whatever P.

Two-sided feedback needs no state of its own: the owner's error r of the mean is kept as P r
in the owner's own residual, over its own shard, where nothing else is kept, since the owner's
contribution to its own shard is exact. So sum_t out_t + (1/P) sum_i e_i = (1/P) sum_t sum_i g_i
holds as it stands, and a change of world size redistributes one kind of residual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
    held_back,
)
from compressa.aggregators.feedback import FeedbackRule, OwnedResidual
from compressa.aggregators.scope_coding import decode
from compressa.aggregators.scopes import ScopePayload
from compressa.aggregators.shard_payloads import ShardPayloads
from compressa.aggregators.shards import ShardSpans, ShardSum, cut_shards
from compressa.arrays import widened
from compressa.codecs.base import Codec
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives.accumulator import Span
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout


class Scattered(Aggregator):
    """Scatter-reduce-all-gather with a codec."""

    joinable = True

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        if codec.granularity not in (Granularity.ELEMENT, Granularity.BLOCK):
            raise ConfigError(
                f"{codec.name}: its statistics span the whole parameter, so exchange.kind = "
                '"scatter_reduce" cannot cut it into shards; use "auto" or "all_gather"'
            )
        self._world = world
        self.ends_quick = world.size > 1  # the others' means have been decoded by then
        if feedback is not None and feedback.momentum is not None:
            raise ConfigError(
                "momentum: in a scatter-reduce every rank contributes its own shard whole, which "
                'leaves no velocity there; use exchange.kind = "auto" or "all_gather"'
            )
        block = math.lcm(codec.block_elems, feedback.block_elems if feedback else 1)
        cut = cut_shards(layout, world.size, block)
        self._shards = ShardPayloads(codec, layout.unit, cut, world, feedback=feedback)
        payloads, self._sent = self._shards.payloads, self._shards.buffers
        self.waits = any(payload.waits for payload in payloads)
        self._sizes_bytes = tuple(payload.wire_bytes for payload in payloads)
        self._spans = ShardSpans(cut, self._sizes_bytes)
        self._own = _OwnShard(payloads[world.rank], self._sent[world.rank], world)
        self._scratch = Scratch(world.device)

    @property
    def takes_half(self) -> bool:
        """The own shard is worked on in memory that the thread keeps."""
        return True

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One all-reduce that decodes, adds and encodes."""
        size, shards = sum(self._sizes_bytes), self._sizes_bytes
        kind = Verb.ALL_REDUCE, torch.uint8
        return (Round(*kind, size, algorithm=ROUND_ROBIN, shard_bytes=shards),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Encode every other rank's shard, then average."""
        self._sent = self._shards.encode(gradients, context)
        means = _Means(self._spans, [*self._sent], gradients, context, self._shards, self._own)
        yield AllReduce(means, self._scratch)
        if self._world.size == 1:
            means.add(means.span, ())  # a mean of one is encoded, too

    def rollback(self, context: StepContext) -> None:
        """Add back what the peers were sent; restore what the own shard contributed."""
        for peer in self._world.peers:
            self._shards.payloads[peer].give_back(self._sent[peer], context)
        self._own.restore()


@dataclass(eq=False)
class _Means(ShardSum):
    """The means of one step: the own shard's is encoded when it is summed.

    Attributes:
        each: What encodes and decodes a shard.
        own: Averages and encodes the own one.
    """

    each: ShardPayloads
    own: _OwnShard

    def __post_init__(self) -> None:
        super().__post_init__()
        self.exact = self.own.payload.exact

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless it is what `sender` owes for the step."""
        self.each.payloads[self.shards.owners[span]].check(message, self.context, sender)

    def summed(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Average the own values and what others gave, in the order of ranks; encode the mean."""
        own = self.shards.owners[span]
        arrived = dict(enumerate(before)) | dict(enumerate(after, own + 1))
        return self.own.encode_means(arrived, self.gradients, self.context)

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Decode other owners' means."""
        means = {self.shards.owners[span]: message for span, message in shared}
        self.each.decode(means, self.gradients, self.context)


class _OwnShard:
    """The shard of which this rank computes and encodes the mean.

    Args:
        payload: Encodes and decodes it.
        buffer: Memory for the encoded mean.
        world: This rank, and how many there are.
    """

    def __init__(self, payload: ScopePayload, buffer: torch.Tensor, world: World) -> None:
        self.payload = payload
        self.buffer = buffer
        self._world = world
        self._owned = [
            None if residual is None else OwnedResidual(residual, scope.segment.elems)
            for residual, scope in zip(payload.residuals, payload.scopes, strict=True)
        ]

    def restore(self) -> None:
        """Keep what a skipped step would have left had nothing arrived."""
        for owned in self._owned:
            if owned is not None:
                owned.restore()

    def encode_means(
        self,
        arrived: Mapping[int, torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> torch.Tensor:
        """Average the own values and the decoded payloads; return the mean's payload.

        Args:
            arrived: By rank, checked payloads, in the order in which they are added.
            gradients: The unit's; the shard goes on as what the others will decode.
            context: The step.
        """
        if self.buffer.is_cuda:
            return self._encode_all(arrived, gradients, context)
        own, payload = self.payload, self.buffer
        undo = [None if owned is None else owned.kept for owned in self._owned]
        averager = own.averager(gradients, context, payload, undo)
        if averager is not None:
            for owned in filter(None, self._owned):
                owned.lend()
            draw, loss_scale = own.draw(own.scopes[0], context, owner=True), context.loss_scale
            ranks = self._world.size
            averager.average(
                list(arrived.values()), draw, 1.0 / ranks, loss_scale, loss_scale / ranks
            )
            return own.seal(payload, context, own.body_bytes)
        parts = {sender: own.parts(part) for sender, part in arrived.items()}
        offset = HEADER_BYTES
        for i, scope in enumerate(own.scopes):  # one by one, so that each stays in the cache
            sent = {sender: part[i][1] for sender, part in parts.items()}
            room = own.room(payload, offset, scope)
            length = self._average(i, sent, room, gradients, context)
            offset = own.advance(payload, offset, length)
        return own.seal(payload, context, offset - HEADER_BYTES)

    def _average(
        self,
        i: int,
        sent: Mapping[int, torch.Tensor],
        room: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> int:
        """Average scope i, encode its mean and decode that; return the payload's length."""
        own, weight = self.payload, 1.0 / self._world.size
        scope, mean = own.scopes[i], self._own_share(i, gradients, context)
        for sender, payload in sent.items():
            own.codec.decode_add(payload, mean, weight, own.draw(scope, context, rank=sender))
        length = self._encode_mean(i, mean, room, context)
        draw = own.draw(scope, context, owner=True)
        decode(own.codec, room[:length], scope.of(gradients), draw)
        return length

    def _encode_all(
        self,
        arrived: Mapping[int, torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> torch.Tensor:
        """The same, but all scopes at each stage, so that a GPU can take them by one launch."""
        own, weight, payload = self.payload, 1.0 / self._world.size, self.buffer
        means = list(gradients)
        for i, scope in enumerate(own.scopes):
            means[scope.gradient] = self._own_share(i, gradients, context)
        for sender, part in arrived.items():
            own.decode_add(part, means, weight, context, sender)
        # What is widened lies elsewhere in each step: a list of it would be made for one use.
        if not any(self._owned) and all(x.dtype is torch.float32 for x in gradients):
            filled = own.encode(means, context, payload, owner=True)
        else:
            filled = self._encode_each(means, context)
        own.decode(filled, gradients, context, self._world.rank)
        return filled

    def _encode_each(self, means: Sequence[torch.Tensor], context: StepContext) -> torch.Tensor:
        """Encode means with what is kept of them; return the filled payload."""
        own, payload, offset = self.payload, self.buffer, HEADER_BYTES
        for i, scope in enumerate(own.scopes):
            room = own.room(payload, offset, scope)
            length = self._encode_mean(i, means[scope.gradient], room, context)
            offset = own.advance(payload, offset, length)
        return own.seal(payload, context, offset - HEADER_BYTES)

    def _own_share(
        self, i: int, gradients: Sequence[torch.Tensor], context: StepContext
    ) -> torch.Tensor:
        """Return what this rank has of scope i's mean, in float32: memory to add to."""
        scope, owned = self.payload.scopes[i], self._owned[i]
        x = scope.of(gradients)
        mean = widened(x, "scatter.mean")
        if owned is not None:
            owned.absorb(mean, context, held=held_back(x, context))
        return mean.mul_(1.0 / self._world.size)

    def _encode_mean(
        self, i: int, mean: torch.Tensor, room: torch.Tensor, context: StepContext
    ) -> int:
        """Encode the mean of scope i; return its length."""
        own, owned = self.payload, self._owned[i]
        draw = own.draw(own.scopes[i], context, owner=True)
        if owned is None:
            return own.codec.encode(mean, room, draw)
        return owned.encode(own.codec, mean, room, draw, context, self._world.size)
