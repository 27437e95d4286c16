"""Round-robin: each rank sums a share of its own, which all others send it; then it sends it round.

Both exchanges are direct. Rank r sends to r+1, r+2 and so on, so that at any time each rank is the
target of one sender: no port is swamped (free of incast). Bytes as with the ring, in two steps
instead of 2 (P-1): messages overlap where a is latency. Shares are summed in the order of ranks.
With a codec's accumulator it is the scatter-reduce of compressed data: a message from each rank to
the owner of a share, one from there to all. Cost: 2 (P-1) a + 2 n (P-1)/P b + n (P-1)/P g.
"""

from __future__ import annotations

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
    if group.size == 1:
        return
    spans = values.cut(span, group.size)
    own, ranks = spans[group.index], group.ranks
    theirs = {ranks[index]: spans[index] for index in group.others}
    yield from reduce_hop(values, scratch, theirs, own, group.after, group.before)
    finals = yield from seal(values, own, Author(ranks[group.index]))
    heard = {peer: (part,) for peer, part in theirs.items()}
    yield from share_hop(values, scratch, finals, theirs, (own,), heard)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    others = ranks - 1
    port = size_bytes * others / ranks
    return [Stage(others, port, port), Stage(others, port)] if others else []
