"""Ring: every rank hears from the one before it, and talks to the one after it.

A span for each rank goes round twice: first its partial sum, which each rank adds its own values
to, then the result (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009). Cost: 2 (P-1) a + 2 n (P-1)/P b + n (P-1)/P g. It is pipelined by cutting a
tensor into several, see `segmented`.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressa.collectives import all_gather_ring
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import reduce_hop, seal, share_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    spans = values.cut(span, group.size)
    yield from reduce_scatter(values, spans, group, scratch)
    yield from all_gather(values, spans, group, scratch)


def reduce_scatter(
    values: Accumulator, spans: Sequence[Span], group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum one span for each member of the group: afterwards it holds the sum of its own.

    The sum begins at the member after its owner's, and goes on in the order of the ring.

    Args:
        values: What is summed, in place; of others' spans a part of the sum is left.
        spans: One for each member, in the order of the group.
        group: Who takes part.
        scratch: Memory for what comes in.

    Raises:
        PayloadError: What comes can not be a partial sum of its span.
    """
    after, before = group.at(group.index + 1), group.at(group.index - 1)
    for hop in range(1, group.size):
        given, added = (spans[(group.index - hop - i) % group.size] for i in (0, 1))
        yield from reduce_hop(values, scratch, {after: given}, added, [before])


def all_gather(
    values: Accumulator,
    spans: Sequence[Span],
    group: RankGroup,
    scratch: Scratch,
    author: Author | None = None,
) -> Program[None]:
    """Bring each member's span to all.

    Args:
        values: Where results are, and go.
        spans: One for each member.
        group: Who takes part.
        scratch: Memory for what comes in.
        author: In whose name this rank seals its own span: its own unless others hold it, too.
    """
    if group.size == 1:
        return
    own = spans[group.index]
    finals = yield from seal(values, own, author or Author(group.at(group.index)))
    for number, hop in enumerate(all_gather_ring.hops(group.index, group.size)):
        yield from share_hop(values, scratch, finals, *hop.of(spans, group), number)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    part = size_bytes / ranks
    return [Stage(1, part, part)] * (ranks - 1) + [Stage(1, part)] * (ranks - 1)
