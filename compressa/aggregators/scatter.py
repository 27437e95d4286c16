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

import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from compressa.aggregators.base import Aggregator, AllReduce, Round, Rounds, Turn, Verb, World
from compressa.aggregators.feedback import FeedbackRule, OwnedResidual
from compressa.aggregators.scopes import Scope, ScopePayload, decode, held_back
from compressa.arrays import widened
from compressa.codecs.base import Codec
from compressa.codecs.payload import HEADER_BYTES
from compressa.codecs.share import Share
from compressa.collectives.base import Combine
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout


class Scattered(Aggregator, Combine):
    """Scatter-reduce-all-gather with a codec; also the combine of its own all-reduce."""

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        if codec.granularity not in (Granularity.ELEMENT, Granularity.BLOCK):
            raise ConfigError(
                f"{codec.name}: its statistics span the whole parameter, so exchange.kind = "
                '"scatter_reduce" cannot cut it into shards; use "auto" or "all_gather"'
            )
        self._world = world
        if feedback is not None and feedback.momentum is not None:
            raise ConfigError(
                "momentum: in a scatter-reduce every rank contributes its own shard whole, which "
                'leaves no velocity there; use exchange.kind = "auto" or "all_gather"'
            )
        block = math.lcm(codec.block_elems, feedback.block_elems if feedback else 1)
        self._shards = [
            ScopePayload(codec, layout.unit, scopes, world, feedback=feedback)
            for scopes in cut_shards(layout, world.size, block)
        ]
        self._sent = [shard.buffer() for shard in self._shards]
        self._filled = list(self._sent)
        self._scratch = Scratch(world.device)
        pairs = zip(self._own.residuals, self._own.scopes, strict=True)
        self._owned = [
            None if residual is None else OwnedResidual(residual, scope.segment.elems)
            for residual, scope in pairs
        ]
        self._turn = Turn(0)
        self._gradients: Sequence[torch.Tensor] = ()

    @property
    def takes_half(self) -> bool:
        """The own shard is worked on in memory that the thread keeps."""
        return True

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One all-reduce that decodes, adds and encodes."""
        sizes = tuple(shard.wire_bytes for shard in self._shards)
        return (Round(Verb.ALL_REDUCE, torch.uint8, sum(sizes), shard_bytes=sizes),)

    def run(self, gradients: Sequence[torch.Tensor], turn: Turn) -> Rounds:
        """Encode every other rank's shard, then combine."""
        self._gradients, self._turn = gradients, turn
        for peer in self._world.peers:
            buffer = self._sent[peer]
            self._filled[peer] = self._shards[peer].encode(gradients, turn, buffer)
        yield AllReduce(self, self._scratch)
        self._gradients = ()  # their memory is DDP's, who may free it

    def rollback(self, turn: Turn) -> None:
        """Add back what the peers were sent; restore what the own shard contributed."""
        for peer in self._world.peers:
            self._shards[peer].give_back(self._filled[peer], turn)
        for owned in self._owned:
            if owned is not None:
                owned.restore()

    @property
    def exact(self) -> bool:
        """Whether payloads are of fixed size."""
        return self._own.exact

    def shard_bytes(self, shard: int) -> int:
        """Bytes of a shard's payload."""
        return self._shards[shard].wire_bytes

    def partial(self, shard: int) -> torch.Tensor:
        """The payload for a shard's owner."""
        return self._filled[shard]

    def reduce(self, shard: int, partials: Sequence[torch.Tensor | None]) -> None:
        """Average the own values and the decoded partials; encode the mean."""
        own, turn = self._own, self._turn
        arrived = {sender: part for sender, part in enumerate(partials) if part is not None}
        for sender, part in arrived.items():
            own.check(part, turn, sender)
        payload = self._sent[self._world.rank]
        encode_means = self._encode_means_at_once if payload.is_cuda else self._encode_means
        self._filled[self._world.rank] = encode_means(arrived, payload)

    def sealed(self, shard: int) -> torch.Tensor:
        """The encoded mean."""
        return self._filled[shard]

    def accept(self, shard: int, sealed: torch.Tensor) -> None:
        """Check and decode another owner's mean."""
        self._shards[shard].check(sealed, self._turn, shard)
        self._shards[shard].decode(sealed, self._gradients, self._turn, shard)

    @property
    def _own(self) -> ScopePayload:
        return self._shards[self._world.rank]

    def _encode_means(
        self, arrived: Mapping[int, torch.Tensor], payload: torch.Tensor
    ) -> torch.Tensor:
        """Scope by scope, so that each stays in the cache; return the filled payload.

        The gradients go on as what the others will decode.
        """
        own, turn = self._own, self._turn
        parts = {sender: own.parts(part) for sender, part in arrived.items()}
        offset = HEADER_BYTES
        for i, scope in enumerate(own.scopes):
            sent = {sender: part[i][1] for sender, part in parts.items()}
            place = own.place(payload, offset, scope)
            length = self._average_in_one_pass(i, sent, place)
            if length is None:
                length = self._average(i, sent, place)
            offset = own.advance(payload, offset, length)
        return own.seal(payload, turn, offset - HEADER_BYTES)

    def _average_in_one_pass(
        self, i: int, sent: Mapping[int, torch.Tensor], place: torch.Tensor
    ) -> int | None:
        """Do what `_average` does where codec and feedback allow; else do nothing."""
        own, owned, turn, ranks = self._own, self._owned[i], self._turn, self._world.size
        scope, kept = own.scopes[i], None
        x, draw = scope.of(self._gradients), own.draw(scope, turn, owner=True)
        if owned is not None:
            kept = owned.lent(turn, ranks, held=held_back(x, turn))
        if x.dtype is not torch.float32 or (owned is not None and kept is None):
            return None
        return own.codec.average(Share(x, list(sent.values()), place, draw, 1.0 / ranks, kept))

    def _average(self, i: int, sent: Mapping[int, torch.Tensor], place: torch.Tensor) -> int:
        """Average scope i, encode its mean and decode that; return the payload's length."""
        own, turn, weight = self._own, self._turn, 1.0 / self._world.size
        scope, mean = own.scopes[i], self._own_share(i)
        for sender, payload in sent.items():
            own.codec.decode_add(payload, mean, weight, own.draw(scope, turn, rank=sender))
        length = self._encode_mean(i, mean, place)
        draw = own.draw(scope, turn, owner=True)
        decode(own.codec, place[:length], scope.of(self._gradients), draw)
        return length

    def _encode_means_at_once(
        self, arrived: Mapping[int, torch.Tensor], payload: torch.Tensor
    ) -> torch.Tensor:
        """The same, but all scopes at each stage, so that a GPU can take them by one launch."""
        own, turn, weight = self._own, self._turn, 1.0 / self._world.size
        means = list(self._gradients)
        for i, scope in enumerate(own.scopes):
            means[scope.gradient] = self._own_share(i)
        for sender, part in arrived.items():
            own.decode_add(part, means, weight, turn, sender)
        # What is widened lies elsewhere in each step: a list of it would be made for one use.
        if not any(self._owned) and all(x.dtype is torch.float32 for x in self._gradients):
            filled = own.encode(means, turn, payload, owner=True)
        else:
            filled = self._encode_each(means, payload)
        own.decode(filled, self._gradients, turn, self._world.rank)
        return filled

    def _encode_each(self, means: Sequence[torch.Tensor], payload: torch.Tensor) -> torch.Tensor:
        """Encode means with what is kept of them; return the filled payload."""
        own, offset = self._own, HEADER_BYTES
        for i, scope in enumerate(own.scopes):
            place = own.place(payload, offset, scope)
            length = self._encode_mean(i, means[scope.gradient], place)
            offset = own.advance(payload, offset, length)
        return own.seal(payload, self._turn, offset - HEADER_BYTES)

    def _own_share(self, i: int) -> torch.Tensor:
        """Return what this rank has of scope i's mean, in float32: memory to add to."""
        scope, owned = self._own.scopes[i], self._owned[i]
        x = scope.of(self._gradients)
        mean = widened(x, "scatter.mean")
        if owned is not None:
            owned.absorb(mean, self._turn, held=held_back(x, self._turn))
        return mean.mul_(1.0 / self._world.size)

    def _encode_mean(self, i: int, mean: torch.Tensor, place: torch.Tensor) -> int:
        """Encode the mean of scope i; return its length."""
        own, owned, turn = self._own, self._owned[i], self._turn
        draw = own.draw(own.scopes[i], turn, owner=True)
        if owned is None:
            return own.codec.encode(mean, place, draw)
        return owned.encode(own.codec, mean, place, draw, turn, self._world.size)


def cut_shards(layout: Layout, shards: int, block_elems: int) -> list[list[Scope]]:
    """Cut a unit into one nearly equal list of scopes per rank, on block boundaries.

    Cuts fall on multiples of `block_elems` within each segment, or between segments, so that
    blocks are the same whatever the number of ranks.
    """
    edges = _edges(layout, shards, block_elems)
    result: list[list[Scope]] = []
    for low, high in itertools.pairwise(edges):
        scopes, base = [], 0
        for i, segment in enumerate(layout.segments):
            start, stop = max(low - base, 0), min(high - base, segment.elems)
            if start < stop:
                scopes.append(Scope(i, start, segment.part(start, stop)))
            base += segment.elems
        result.append(scopes)
    return result


def _edges(layout: Layout, shards: int, block_elems: int) -> list[int]:
    edges = [0]
    for i in range(1, shards):
        target = layout.elems * i // shards
        base = 0
        for segment in layout.segments:
            if target < base + segment.elems:
                inside = round((target - base) / block_elems) * block_elems
                target = base + min(inside, segment.elems)
                break
            base += segment.elems
        edges.append(max(target, edges[-1]))
    return [*edges, layout.elems]
