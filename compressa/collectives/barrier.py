"""Barrier: nobody goes on before all have come.

In hop i each rank tells the one 2^i members on, and hears from the one 2^i members back, so that
after ceil(lg P) hops everybody has heard of everybody (Hensgen, Finkel and Manber, "Two algorithms
for barrier synchronization", 1988). Cost: ceil(lg P) a.
"""

from __future__ import annotations

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.passing import pass_hop
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.tree import hops


def barrier(group: RankGroup, device: torch.device) -> Program[None]:
    """Wait for all of a group.

    Args:
        group: Who must come.
        device: Where the transport takes messages from.
    """
    said, heard = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    for bit in range(hops(group.size)):
        after, before = group.at(group.index + (1 << bit)), group.at(group.index - (1 << bit))
        yield from pass_hop({after: said}, {before: heard})


def stages(ranks: int) -> list[Stage]:
    """Return what each hop costs, a message of one byte; none for one rank.

    Args:
        ranks: How many wait for each other, at least 1.
    """
    return [Stage(1, 1)] * hops(ranks)
