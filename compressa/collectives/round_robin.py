"""Round-robin: each rank sums a share of its own, which all others send it; then it sends it round.

Both exchanges are direct. Rank r sends to r+1, r+2 and so on, so that at any time each rank is the
target of one sender: no port is swamped (free of incast). Bytes as with the ring, in two steps
instead of 2 (P-1): messages overlap where a is latency. Shares are summed in the order of ranks.
Cost: 2 (P-1) a + 2 n (P-1)/P b + n (P-1)/P g.
"""

from __future__ import annotations

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import reduce_hop, seal, share_hop
from compressa.collectives.scratch import Scratch
from compressa.collectives.team import Team


def all_reduce(values: Accumulator, span: Span, team: Team, scratch: Scratch) -> Program[None]:
    """Sum over the team; see `compressa.collectives.algorithms`."""
    if team.size == 1:
        return
    spans = span.cut(team.size, values.align_elems)
    own, others = spans[team.place], team.others()
    given = {team.at(place): spans[place] for place in others}
    yield from reduce_hop(values, scratch, given, own, team.after(), team.before())
    finals = yield from seal(values, own, Author(team.at(team.place)))
    shared = {team.at(place): [own] for place in others}
    taken = {team.at(place): [spans[place]] for place in others}
    yield from share_hop(values, scratch, finals, shared, taken)


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """What each hop costs."""
    others = ranks - 1
    port = size_bytes * others / ranks
    return [Stage(others, port, port), Stage(others, port)] if others else []
