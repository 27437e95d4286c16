"""Ring broadcast: each rank passes what it gets from the one before on to the one after.

In chunks, all links are busy at once. With K chunks of c = m/K bytes, cost:
(P-2 + K) (a + c b), least with c = sqrt(m a / ((P-2) b)). In one piece ("direct") it is
(P-1) (a + m b).
"""

from __future__ import annotations

import math

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Link, Stage
from compressa.collectives.passing import cut, pass_hop
from compressa.collectives.team import Team


def broadcast(data: torch.Tensor, team: Team, chunks: int) -> Program[None]:
    """Bring the first place's bytes to all of the team."""
    parts, place = cut(data, chunks), team.place

    def heard(place: int, hop: int) -> bool:
        """Whether a place hears from the one before it: chunk `hop - (place - 1)`."""
        return 0 < place < team.size and 0 <= hop - (place - 1) < chunks

    for hop in range(len(stages(0, team.size, chunks))):
        incoming = {team.at(place - 1): parts[hop - place + 1]} if heard(place, hop) else {}
        outgoing = {team.at(place + 1): parts[hop - place]} if heard(place + 1, hop) else {}
        yield from pass_hop(outgoing, incoming)


def stages(size_bytes: int, ranks: int, chunks: int) -> list[Stage]:
    """What each hop costs."""
    return [Stage(1, size_bytes / chunks)] * (ranks - 2 + chunks if ranks > 1 else 0)


def best_chunks(size_bytes: int, ranks: int, link: Link) -> int:
    """How many chunks cost least."""
    if not link.message_s:
        raise ValueError("without a cost for each message, ever smaller chunks cost ever less")
    return max(1, round(math.sqrt(size_bytes * link.byte_s * max(ranks - 2, 0) / link.message_s)))
