"""All-to-all: every rank sends all that it has to every other, and sums for itself.

One exchange, and no rank waits for another's sum: the fewest steps that there can be, for values
so small that their bytes do not matter. Each sums in the order of ranks, so that all get the same
bits; if messages are lossy, each adds what its own decodes to, as the others do. Messages leave
shifted, so that no port hears from two at a time. It takes (P-1) n bytes of scratch memory. Cost:
(P-1) a + (P-1) n b + (P-1) n g.
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import swap_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    if group.size > 1:
        author = Author(group.at(group.index))
        yield from swap_hop(values, scratch, span, author, group.after, group.before)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    others = ranks - 1
    return [Stage(others, others * size_bytes, others * size_bytes)] if others else []
