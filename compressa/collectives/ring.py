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
from compressa.collectives.scratch import Scratch
from compressa.collectives.team import Team


def all_reduce(values: Accumulator, span: Span, team: Team, scratch: Scratch) -> Program[None]:
    """Sum over the team; see `compressa.collectives.algorithms`."""
    spans = values.cut(span, team.size)
    yield from reduce_scatter(values, spans, team, scratch)
    yield from all_gather(values, spans, team, scratch)


def reduce_scatter(
    values: Accumulator, spans: Sequence[Span], team: Team, scratch: Scratch
) -> Program[None]:
    """Sum one span for each place of the team: afterwards it holds the sum of its own.

    The sum begins at the place after its owner's, and goes on in the order of the ring.
    """
    after, before = team.at(team.place + 1), team.at(team.place - 1)
    for hop in range(1, team.size):
        given, added = (spans[(team.place - hop - i) % team.size] for i in (0, 1))
        yield from reduce_hop(values, scratch, {after: given}, added, [before])


def all_gather(
    values: Accumulator,
    spans: Sequence[Span],
    team: Team,
    scratch: Scratch,
    author: Author | None = None,
) -> Program[None]:
    """Bring each place's span to all.

    Args:
        values: Where results are, and go.
        spans: One for each place.
        team: Who takes part.
        scratch: Memory for what comes in.
        author: In whose name this rank seals its own span: its own unless others hold it, too.
    """
    if team.size == 1:
        return
    own = spans[team.place]
    finals = yield from seal(values, own, author or Author(team.at(team.place)))
    for number, hop in enumerate(all_gather_ring.hops(team.place, team.size)):
        yield from share_hop(values, scratch, finals, *hop.of(spans, team), number)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """What each hop costs."""
    part = size_bytes / ranks
    return [Stage(1, part, part)] * (ranks - 1) + [Stage(1, part)] * (ranks - 1)
