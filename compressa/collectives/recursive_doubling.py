"""Recursive doubling: pairs swap all that they have; after each hop twice as many hold the same.

lg P hops, the fewest that one message at a time allows: for small values. A sum of two has the same
bits on both sides, so all end alike. If messages are lossy, those who hold the same make the same
message of it, and go on with what it decodes to. Cost: lg P (a + n b + n g); with ranks beyond a
power of two, those of the fold (see `butterfly`) besides: 2 (a + n b) + n g.
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.butterfly import fold, folded, lg_core, unfold
from compressa.collectives.cost import Stage
from compressa.collectives.hop import Finals, idle, seal, swap_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    hops = lg_core(group.size)
    finals: Finals = {}
    if not (yield from fold(values, span, group, scratch)):
        yield from idle(hops)
    else:
        for hop in range(hops):
            # The members that hold the same so far are those that differ in the bits below.
            author = Author(group.at((group.index >> hop) << hop), hop)
            peer = group.at(group.index ^ (1 << hop))
            yield from swap_hop(values, scratch, span, author, [peer])
        if group.size > 1 << hops:
            finals = yield from seal(values, span, Author(group.at(0), hops))
    yield from unfold(values, (span,), group, scratch, finals)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    core = [Stage(1, size_bytes, size_bytes)] * lg_core(ranks)
    return folded(size_bytes, ranks, core)
