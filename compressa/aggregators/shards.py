"""Shards: a unit cut into a part for each rank, which has charge of the sum of it.

Each rank sends every other its contribution to the other's shard; the owner sums, and sends the
result to all. On the wire that is `round_robin`, whose messages are payloads.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compressa.aggregators.base import Scope, StepContext
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.parameters import Layout


def cut_shards(layout: Layout, shards: int, block_elems: int) -> list[list[Scope]]:
    """Cut a unit into one nearly equal list of scopes per rank, on block boundaries.

    Cuts fall on multiples of `block_elems` within each segment, or between segments, so that
    blocks are the same whatever the number of ranks. Of units that are joined each is cut as it
    would be alone.

    Args:
        layout: The unit.
        shards: How many ranks.
        block_elems: Elements that must stay together.
    """
    result: list[list[Scope]] = [[] for _ in range(shards)]
    first = 0
    for unit in layout.joined or (layout,):
        edges = _edges(unit, shards, block_elems)
        for scopes, (low, high) in zip(result, itertools.pairwise(edges), strict=True):
            base = 0
            for i, segment in enumerate(unit.segments, first):
                start, stop = max(low - base, 0), min(high - base, segment.elems)
                if start < stop:
                    scopes.append(Scope(i, start, segment.part(start, stop)))
                base += segment.elems
        first += len(unit.segments)
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


class ShardSpans:
    """The shards of a unit as spans: a header counts as an element, so that no two are the same.

    Args:
        shards: The scopes of each.
        sizes_bytes: Most bytes of a message of each.

    Attributes:
        spans: By owner.
        span: All of them.
        owners: By span.
        sizes_bytes: By span.
    """

    def __init__(self, shards: Sequence[Sequence[Scope]], sizes_bytes: Sequence[int]) -> None:
        elems = [1 + sum(scope.segment.elems for scope in scopes) for scopes in shards]
        edges = itertools.accumulate(elems, initial=0)
        self.spans = tuple(itertools.starmap(Span, itertools.pairwise(edges)))
        self.span = Span(0, self.spans[-1].stop)
        self.owners = {span: owner for owner, span in enumerate(self.spans)}
        self.sizes_bytes = dict(zip(self.spans, sizes_bytes, strict=True))


@dataclass(eq=False)
class ShardSum(Accumulator):
    """One step's sum, a shard to each of all ranks, by `round_robin`.

    Attributes:
        shards: Where it is cut.
        messages: By owner, what this rank holds of a shard, 1-D uint8: its contribution, made
            beforehand; of the own one the sum, when it is added up. The list is the sum's own.
        gradients: The unit's, as of `Aggregator.run`: 1-D, contiguous, one a segment. They hold the
            result when it is done.
        context: The step.
    """

    shards: ShardSpans
    messages: list[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    context: StepContext

    ready = True  # what is given before the sum begins, what is shared when it is added up

    def __post_init__(self) -> None:
        self.span = self.shards.span
        self.align_elems = self.span.elems  # it is cut nowhere but into shards

    def cut(self, span: Span, parts: int) -> tuple[Span, ...]:
        """Return the shards.

        Raises:
            ValueError: It is not all of them, or not one for each rank.
        """
        spans = self.shards.spans
        if span != self.span or parts != len(spans):
            raise ValueError(f"a sum over {len(spans)} ranks was cut into {parts} parts")
        return spans

    def capacity_bytes(self, span: Span) -> int:
        """Most bytes of a message of a shard."""
        return self.shards.sizes_bytes[span]

    def quick(self, elems: int) -> bool:
        """Never: others' payloads are decoded."""
        return False

    def give(self, span: Span) -> torch.Tensor:
        """Return the message of a shard, as this rank holds it."""
        return self.messages[self.shards.owners[span]]

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Return what `give` returns: of the own shard, the sum."""
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Sum the own shard, and hold the message of the sum from then on."""
        self.messages[self.shards.owners[span]] = self.summed(span, after, before)

    @abstractmethod
    def summed(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Sum the own shard.

        Args:
            span: The own shard.
            after: 1-D uint8, what the ranks after this one gave, in their order; it was checked.
            before: Likewise, of the ranks before it.

        Returns:
            The message of the sum, 1-D uint8, at most `capacity_bytes(span)` long.
        """
