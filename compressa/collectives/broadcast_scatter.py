"""Scatter and all-gather: the bytes are shared out down a binomial tree, then go round a ring.

For many bytes: no port carries them more than twice, whatever P (Barnett et al., "Interprocessor
collective communication library", 1994). Cost: (ceil(lg P) + P-1) a + 2 m (P-1)/P b.
"""

from __future__ import annotations

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import idle
from compressa.collectives.passing import cut, cuts, pass_hop
from compressa.collectives.team import Team
from compressa.collectives.tree import hops


def broadcast(data: torch.Tensor, team: Team) -> Program[None]:
    """Bring the first place's bytes to all of the team."""
    yield from _scatter(data, team)
    yield from _all_gather(data, team)


def _scatter(data: torch.Tensor, team: Team) -> Program[None]:
    """Bring each place its part; in between, some hold those of a group that they lead."""
    edges = [span.start for span in cuts(data.numel(), team.size)] + [data.numel()]

    def led(place: int, width: int) -> torch.Tensor:
        return data[edges[place] : edges[min(place + width, team.size)]]

    for bit in reversed(range(hops(team.size))):
        width = 1 << bit
        below, above = team.place + width, team.place - width
        if team.place % width:
            yield from idle()
        elif team.place & width:
            yield from pass_hop({}, {team.at(above): led(team.place, width)})
        elif below < team.size:
            yield from pass_hop({team.at(below): led(below, width)}, {})
        else:
            yield from idle()


def _all_gather(data: torch.Tensor, team: Team) -> Program[None]:
    """Pass all parts round; only the first place needs none."""
    parts, place = cut(data, team.size), team.place
    after = (place + 1) % team.size
    for hop in range(team.size - 1):
        sent, taken = (parts[(place - hop - i) % team.size] for i in (0, 1))
        outgoing = {team.at(after): sent} if after else {}
        yield from pass_hop(outgoing, {team.at(place - 1): taken} if place else {})


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """What each hop costs."""
    part = size_bytes / ranks
    widths = [1 << bit for bit in reversed(range(hops(ranks)))]
    scatter = [Stage(1, min(width, ranks - width) * part) for width in widths]
    return scatter + [Stage(1, part)] * (ranks - 1)
