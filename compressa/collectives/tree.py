"""Tree: partial sums go down a binomial tree to its root, and the result up the same tree.

In each hop half of those that still hold a part of the sum give it to the other half; then the
other way round, the root first. Two times lg P messages, whatever P: for small values, and where
what is summed grows on its way (as sparse values do). Cost: 2 ceil(lg P) (a + n b) +
ceil(lg P) n g. The root is the first of the group.
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import Finals, give_hop, idle, reduce_hop, seal, share_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    if group.size == 1:
        return
    yield from reduce(values, span, group, scratch)
    yield from broadcast(values, span, group, scratch, Author(group.at(0)))


def reduce(values: Accumulator, span: Span, group: RankGroup, scratch: Scratch) -> Program[None]:
    """Sum a span over the group: its first member holds the sum afterwards, the others a part.

    Args:
        values: What is summed, in place.
        span: Which of it.
        group: Who takes part.
        scratch: Memory for what comes in.

    Raises:
        PayloadError: What comes can not be a partial sum of the span.
    """
    for bit in range(hops(group.size)):
        mask = 1 << bit
        if group.index % mask:
            yield from idle()
        elif group.index & mask:
            yield from give_hop(values, scratch, group.at(group.index - mask), span)
        elif group.index + mask < group.size:
            yield from reduce_hop(values, scratch, {}, span, [group.at(group.index + mask)])
        else:
            yield from idle()


def broadcast(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch, author: Author
) -> Program[None]:
    """Bring what the first member holds to all.

    Args:
        values: Where the result is, or goes.
        span: What is brought.
        group: Who takes part.
        scratch: Memory for what comes in.
        author: In whose name the first member seals it.
    """
    finals: Finals = {}
    if not group.index:
        finals = yield from seal(values, span, author)
    for bit in reversed(range(hops(group.size))):
        mask = 1 << bit
        if group.index % mask:
            yield from idle()
        elif group.index & mask:
            above = group.at(group.index - mask)
            yield from share_hop(values, scratch, finals, (), (), {above: (span,)})
        elif group.index + mask < group.size:
            below = [group.at(group.index + mask)]
            yield from share_hop(values, scratch, finals, below, (span,), {})
        else:
            yield from idle()


def hops(ranks: int) -> int:
    """Return how many hops lead from the root to all: lg P, rounded up.

    Args:
        ranks: P, at least 1.
    """
    return (ranks - 1).bit_length()


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    masks = [1 << hop for hop in range(hops(ranks))]
    shares = [-(-(ranks - mask) // (2 * mask)) / ranks for mask in masks]  # so many send upwards
    reducing = [
        Stage(1, size_bytes, size_bytes, "in", hops(min(mask, ranks - mask)), share)
        for mask, share in zip(masks, shares, strict=True)
    ]
    return reducing + [Stage(1, size_bytes, way="out", share=share) for share in reversed(shares)]
