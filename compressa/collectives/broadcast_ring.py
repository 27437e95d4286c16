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
from compressa.collectives.rank_group import RankGroup


def broadcast(data: torch.Tensor, group: RankGroup, chunks: int) -> Program[None]:
    """Bring the first member's bytes to all of the group.

    Args:
        data: 1-D uint8, as long on every rank; overwritten but at the first member.
        group: Who takes part.
        chunks: K.
    """
    parts, index = cut(data, chunks), group.index

    def heard(index: int, hop: int) -> bool:
        """Whether a member hears from the one before it: chunk `hop - (index - 1)`."""
        return 0 < index < group.size and 0 <= hop - (index - 1) < chunks

    for hop in range(len(stages(0, group.size, chunks))):
        incoming = {group.at(index - 1): parts[hop - index + 1]} if heard(index, hop) else {}
        outgoing = {group.at(index + 1): parts[hop - index]} if heard(index + 1, hop) else {}
        yield from pass_hop(outgoing, incoming)


def stages(size_bytes: int, ranks: int, chunks: int) -> list[Stage]:
    """Return what each hop of a broadcast costs, in their order; none for one rank.

    Args:
        size_bytes: Of what is brought.
        ranks: How many hold it in the end, the first member included; at least 1.
        chunks: K, into how many pieces it is cut; at least 1.
    """
    return [Stage(1, size_bytes / chunks)] * (ranks - 2 + chunks if ranks > 1 else 0)


def best_chunks(size_bytes: int, ranks: int, link: Link) -> int:
    """Return how many chunks cost least.

    Args:
        size_bytes: Of what is brought.
        ranks: How many they are.
        link: Between them.

    Raises:
        ValueError: Its messages cost nothing.
    """
    if not link.message_s:
        raise ValueError("without a cost for each message, ever smaller chunks cost ever less")
    return max(1, round(math.sqrt(size_bytes * link.byte_s * max(ranks - 2, 0) / link.message_s)))
