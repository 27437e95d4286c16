"""Barrier: nobody goes on before all have come.

In hop i each rank tells the one 2^i places on, and hears from the one 2^i places back, so that
after ceil(lg P) hops everybody has heard of everybody (Hensgen, Finkel and Manber, "Two algorithms
for barrier synchronization", 1988). Cost: ceil(lg P) a.
"""

from __future__ import annotations

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.passing import pass_hop
from compressa.collectives.team import Team
from compressa.collectives.tree import hops


def barrier(team: Team, device: torch.device) -> Program[None]:
    """Wait for all of a team.

    Args:
        team: Who must come.
        device: Where the transport takes messages from.
    """
    said, heard = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    for bit in range(hops(team.size)):
        after, before = team.at(team.place + (1 << bit)), team.at(team.place - (1 << bit))
        yield from pass_hop({after: said}, {before: heard})


def stages(ranks: int) -> list[Stage]:
    """What each hop costs."""
    return [Stage(1, 1)] * hops(ranks)
