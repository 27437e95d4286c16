"""Shards: a unit cut into a part for each rank, which has charge of the sum of it.

Each rank sends every other its contribution to the other's shard; the owner sums, and sends the
result to all. On the wire that is `round_robin`, whose messages are payloads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from compressa.aggregators.base import StepContext
from compressa.aggregators.scope import Scope
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.parameters import Layout


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


class ShardSum(Accumulator):
    """One step's sum, a shard to each of all ranks, by `round_robin`.

    Args:
        shards: Where it is cut.
        given: By owner, the message with what this rank contributes, made beforehand.
        gradients: The unit's; they hold the result when it is done.
        context: The step.
        exact: Whether messages have as many bytes as they may have.
    """

    ready = True  # what is given before the sum begins, what is shared when it is added up
    _result: torch.Tensor

    def __init__(
        self,
        shards: ShardSpans,
        given: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
        *,
        exact: bool,
    ) -> None:
        self.span = shards.span
        self.align_elems = self.span.elems  # it is cut nowhere but into shards
        self.exact = exact
        self._owners = shards.owners
        self._spans = shards.spans
        self._sizes_bytes = shards.sizes_bytes
        self._given = given
        self._gradients = gradients
        self._context = context

    def cut(self, span: Span, parts: int) -> tuple[Span, ...]:
        """Return the shards.

        Raises:
            ValueError: It is not all of them, or not one for each rank.
        """
        if span != self.span or parts != len(self._spans):
            raise ValueError(f"a sum over {len(self._spans)} ranks was cut into {parts} parts")
        return self._spans

    def capacity_bytes(self, span: Span) -> int:
        """Most bytes of a message of a shard."""
        return self._sizes_bytes[span]

    def quick(self, elems: int) -> bool:
        """Never: others' payloads are decoded."""
        return False

    def give(self, span: Span) -> torch.Tensor:
        """The own contribution to a shard."""
        return self._given[self._owners[span]]

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """The result of the own shard, which `add` has made."""
        return self._result

    def by_rank(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Return what came for the own shard, by sender, in the order of ranks."""
        return dict(enumerate(before)) | dict(enumerate(after, self._owners[span] + 1))
