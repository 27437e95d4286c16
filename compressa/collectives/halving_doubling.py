"""Halving-doubling: pairs swap halves of what they still sum, then the results, ever larger ones.

Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner, "Optimization
of collective reduction operations", 2004): the bytes of the ring in 2 lg P messages. With Q the
largest power of two not above P, the cost is 2 lg Q a + 2 n (Q-1)/Q b + n (Q-1)/Q g, and with
ranks beyond it those of the fold (see `butterfly`) besides: 2 (a + n b) + n g.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressa.collectives import all_gather_recursive_doubling
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.butterfly import fold, folded, lg_core, unfold
from compressa.collectives.cost import Stage
from compressa.collectives.hop import Finals, idle, reduce_hop, seal, share_hop, whole
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    hops = lg_core(group.size)
    spans = values.cut(span, 1 << hops)
    finals: Finals = {}
    if not (yield from fold(values, span, group, scratch)):
        yield from idle(2 * hops)
    elif hops:
        yield from _halve(values, spans, group, scratch)
        finals = yield from seal(values, spans[group.index], Author(group.at(group.index)))
        for number, hop in enumerate(all_gather_recursive_doubling.hops(group.index, len(spans))):
            yield from share_hop(values, scratch, finals, *hop.of(spans, group), number)
    yield from unfold(values, spans, group, scratch, finals)


def _halve(
    values: Accumulator, spans: Sequence[Span], group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum one span for each member of the core: afterwards it holds the sum of its own."""
    width = len(spans)
    while width > 1:
        width //= 2
        peer = group.index ^ width
        given, kept = (_aligned(spans, index, width) for index in (peer, group.index))
        outgoing = {group.at(peer): whole(given)}
        yield from reduce_hop(values, scratch, outgoing, whole(kept), [group.at(peer)])


def _aligned(spans: Sequence[Span], index: int, width: int) -> Sequence[Span]:
    """The spans of a member and its neighbors, of which a group of `width` has charge together."""
    first = index // width * width
    return spans[first : first + width]


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    parts = [size_bytes / (2 << hop) for hop in range(lg_core(ranks))]
    halving = [Stage(1, part, part) for part in parts]
    doubling = [Stage(1, part) for part in reversed(parts)]
    return folded(size_bytes, ranks, halving + doubling)
