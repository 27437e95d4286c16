"""k-nomial broadcast: in each hop, every rank that has the bytes sends them to k-1 others.

ceil(log_k P) hops; k = 2 is the binomial tree, and costs least where a port sends one message at a
time. A larger k pays where latency, not the port, is what a message takes. Cost:
ceil(log_k P) (k-1) (a + m b), less where P is not a power of k: then the first hop has fewer
messages.
"""

from __future__ import annotations

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.passing import pass_hop
from compressa.collectives.team import Team


def broadcast(data: torch.Tensor, team: Team, k: int) -> Program[None]:
    """Bring the first place's bytes to all of the team."""
    for width in _widths(team.size, k):
        children = range(team.place + width, min(team.place + k * width, team.size), width)
        above = team.place % (k * width)
        if not above:
            yield from pass_hop({team.at(child): data for child in children}, {})
        elif not above % width:
            yield from pass_hop({}, {team.at(team.place - above): data})
        else:
            yield from pass_hop({}, {})


def stages(size_bytes: int, ranks: int, k: int) -> list[Stage]:
    """What each hop costs."""
    messages = [min(k - 1, (ranks - 1) // width) for width in _widths(ranks, k)]
    return [Stage(count, count * size_bytes) for count in messages]


def _widths(ranks: int, k: int) -> list[int]:
    """How far apart those are that hear in the same hop, for each hop."""
    if k < 2:
        raise ValueError(f"k must be at least 2, not {k}")
    widths, width = [], 1
    while width < ranks:
        widths.append(width)
        width *= k
    return widths[::-1]
