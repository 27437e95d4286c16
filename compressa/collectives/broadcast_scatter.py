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
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.tree import hops


def broadcast(data: torch.Tensor, group: RankGroup) -> Program[None]:
    """Bring the first member's bytes to all of the group.

    Args:
        data: 1-D uint8, as long on every rank; overwritten but at the first member.
        group: Who takes part.
    """
    yield from _scatter(data, group)
    yield from _all_gather(data, group)


def _scatter(data: torch.Tensor, group: RankGroup) -> Program[None]:
    """Bring each member its part; in between, some hold those of a group that they lead."""
    edges = [span.start for span in cuts(data.numel(), group.size)] + [data.numel()]

    def led(index: int, width: int) -> torch.Tensor:
        return data[edges[index] : edges[min(index + width, group.size)]]

    for bit in reversed(range(hops(group.size))):
        width = 1 << bit
        below, above = group.index + width, group.index - width
        if group.index % width:
            yield from idle()
        elif group.index & width:
            yield from pass_hop({}, {group.at(above): led(group.index, width)})
        elif below < group.size:
            yield from pass_hop({group.at(below): led(below, width)}, {})
        else:
            yield from idle()


def _all_gather(data: torch.Tensor, group: RankGroup) -> Program[None]:
    """Pass all parts round; only the first member needs none."""
    parts, index = cut(data, group.size), group.index
    after = (index + 1) % group.size
    for hop in range(group.size - 1):
        sent, taken = (parts[(index - hop - i) % group.size] for i in (0, 1))
        outgoing = {group.at(after): sent} if after else {}
        yield from pass_hop(outgoing, {group.at(index - 1): taken} if index else {})


def stages(size_bytes: int, ranks: int) -> list[Stage]:
    """Return what each hop of a broadcast costs, in their order; none for one rank.

    Args:
        size_bytes: Of what is brought.
        ranks: How many hold it in the end, the first member included; at least 1.
    """
    part = size_bytes / ranks
    widths = [1 << bit for bit in reversed(range(hops(ranks)))]
    scatter = [Stage(1, min(width, ranks - width) * part) for width in widths]
    return scatter + [Stage(1, part)] * (ranks - 1)
