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
from compressa.collectives.rank_group import RankGroup


def broadcast(data: torch.Tensor, group: RankGroup, k: int) -> Program[None]:
    """Bring the first member's bytes to all of the group.

    Args:
        data: 1-D uint8, as long on every rank; overwritten but at the first member.
        group: Who takes part.
        k: How many times as many ranks hold the bytes after each hop.

    Raises:
        ValueError: k is less than 2.
    """
    for width in _widths(group.size, k):
        children = range(group.index + width, min(group.index + k * width, group.size), width)
        above = group.index % (k * width)
        if not above:
            yield from pass_hop({group.at(child): data for child in children}, {})
        elif not above % width:
            yield from pass_hop({}, {group.at(group.index - above): data})
        else:
            yield from pass_hop({}, {})


def stages(size_bytes: int, ranks: int, k: int) -> list[Stage]:
    """Return what each hop of a broadcast costs, in their order; none for one rank.

    Args:
        size_bytes: Of what is brought.
        ranks: How many hold it in the end, the first member included; at least 1.
        k: As of `broadcast`.

    Raises:
        ValueError: k is less than 2.
    """
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
