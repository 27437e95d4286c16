"""Broadcast of several streams: each source brings bytes of its own to all, at the same time.

Every source's bytes go along the same ring, beginning at the source, in chunks: a pipelined ring
broadcast for each, all of them side by side. Each rank only ever sends to the next one and hears
from the one before, so no port hears from two (no incast), however many the sources are. The floor
is what a port has to hear: n m b with n sources of m bytes each, and (n-1) m b where it is a source
itself. With K chunks of c = m/K bytes, and n = P sources, cost: (P-1) (K a + m b). With fewer, the
last chunk of the last source still has to go round: at most (n K + P-2) (a + c b).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from compressa.collectives import broadcast_ring
from compressa.collectives.base import Program, Together
from compressa.collectives.cost import Stage
from compressa.collectives.passing import check_sources
from compressa.collectives.rank_group import RankGroup


def broadcast(data: Mapping[int, torch.Tensor], group: RankGroup, chunks: int) -> Program[None]:
    """Bring each source's bytes to all of the group.

    Args:
        data: uint8 memory for each source, by its index: what it brings, or where that goes.
        group: Who takes part.
        chunks: Of each stream.
    """
    check_sources(group, list(data))
    streams = [
        broadcast_ring.broadcast(data[source], _beginning_at(source, group), chunks)
        for source in sorted(data)
    ]
    yield Together(streams, len(broadcast_ring.stages(0, group.size, chunks)))


def _beginning_at(source: int, group: RankGroup) -> RankGroup:
    """The same ring, beginning at the source."""
    ranks = [group.at(source + i) for i in range(group.size)]
    return RankGroup(ranks, (group.index - source) % group.size)


def stages(size_bytes: int, ranks: int, sources: int, chunks: int) -> list[Stage]:
    """What passes the busiest port, one chunk after the other.

    Args:
        size_bytes: Of each stream.
        ranks: Number of ranks.
        sources: How many of them are sources.
        chunks: Of each stream.
    """
    if ranks == 1:
        return []
    heard = sources - (sources == ranks)
    filling = 0 if sources == ranks else ranks - 2
    return [Stage(1, size_bytes / chunks)] * (heard * chunks + filling)
