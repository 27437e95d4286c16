"""Master-worker: one rank sums what all send it, in the order of ranks, and shares the result.

The plainest of all, and what others are measured against: the master's port carries everything.
It is of use where one rank is better connected than the others. The master is the first of the
group. Cost: 2 (P-1) (a + n b) + (P-1) n g, at the master.
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import give_hop, reduce_hop, seal, share_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch


def all_reduce(
    values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
) -> Program[None]:
    """Sum over the group; see `compressa.collectives.algorithms`."""
    master = group.at(0)
    if group.index:
        yield from give_hop(values, scratch, master, span)
        yield from share_hop(values, scratch, {}, (), (), {master: (span,)})
    elif workers := group.after:
        yield from reduce_hop(values, scratch, {}, span, workers)
        finals = yield from seal(values, span, Author(master))
        yield from share_hop(values, scratch, finals, workers, (span,), {})


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a sum costs, in their order; none for one rank.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        ranks: How many sum them, at least 1.
    """
    workers = ranks - 1
    if not workers:
        return []
    port, share = workers * size_bytes, 1 / ranks
    gathering = Stage(workers, port, port, "in", share=share)
    return [gathering, Stage(workers, port, way="out", share=share)]
