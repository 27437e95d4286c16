"""Broadcast algorithms by name: bytes from the members that hold them to all others of a group.

With several sources, each serves a share of the other members, except where an algorithm says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from compressa.collectives import (
    broadcast_k_nomial,
    broadcast_multi_source,
    broadcast_ring,
    broadcast_scatter,
)
from compressa.collectives.base import Program
from compressa.collectives.cost import Link, Stage
from compressa.collectives.hop import idle
from compressa.collectives.passing import check_sources
from compressa.collectives.rank_group import RankGroup

ASSUMED = Link(message_s=3e-4, byte_s=8e-9)
"""1 Gbit/s, and what a message takes beside its bytes; what is chosen must not be measured."""

Broadcast = Callable[[torch.Tensor, RankGroup, Sequence[int]], Program[None]]
"""(data, group, sources) -> program: brings 1-D uint8 memory from some to all, in place.

`sources` are indices in the group, not ranks; others than its members, or one twice, raise
ValueError. `data` is as long on every rank.

On every rank it asks for the same number of exchanges: as many as it has stages.
"""


class BroadcastAlgorithm(NamedTuple):
    """One way to bring bytes from one or several members to all.

    Attributes:
        broadcast: The program.
        stages: What each exchange costs, for so many bytes, ranks and sources.
    """

    broadcast: Broadcast
    stages: Callable[[int, int, int], list[Stage]]


def shared_out(
    program: Callable[[torch.Tensor, RankGroup], Program[None]],
    stages: Callable[[int, int], list[Stage]],
) -> BroadcastAlgorithm:
    """Have each source serve a share of the others.

    Args:
        program: Broadcasts from the first member of a group.
        stages: What its exchanges cost, for so many bytes and ranks.
    """

    def broadcast(data: torch.Tensor, group: RankGroup, sources: Sequence[int]) -> Program[None]:
        shares = _shares(group, sources)
        own = next(share for share in shares if group.index in share)
        served = RankGroup([group.at(index) for index in own], own.index(group.index))
        yield from program(data, served)
        hops = len(all_stages(0, group.size, len(sources)))
        yield from idle(hops - len(stages(0, served.size)))

    def all_stages(size_bytes: int, ranks: int, sources: int) -> list[Stage]:
        return stages(size_bytes, -(-ranks // sources))

    return BroadcastAlgorithm(broadcast, all_stages)


def _shares(group: RankGroup, sources: Sequence[int]) -> list[list[int]]:
    """Some ranks for each source: itself, and its share of the others."""
    check_sources(group, sources)
    others = [index for index in range(group.size) if index not in sources]
    edges = [len(others) * i // len(sources) for i in range(len(sources) + 1)]
    return [[source, *others[edges[i] : edges[i + 1]]] for i, source in enumerate(sources)]


def ring(chunks: int) -> BroadcastAlgorithm:
    """Return the algorithm along a ring.

    Args:
        chunks: Into how many pieces the bytes are cut; at least 1.
    """
    return shared_out(
        partial(broadcast_ring.broadcast, chunks=chunks),
        partial(broadcast_ring.stages, chunks=chunks),
    )


def k_nomial(k: int) -> BroadcastAlgorithm:
    """Return the algorithm down a tree.

    Args:
        k: How many times as many ranks hold the bytes after each hop; less than 2 makes the
            algorithm's functions raise ValueError.
    """
    return shared_out(
        partial(broadcast_k_nomial.broadcast, k=k), partial(broadcast_k_nomial.stages, k=k)
    )


def multi_source(laps: int) -> BroadcastAlgorithm:
    """Return the algorithm from all sources to all others at once.

    Args:
        laps: How often each source feeds chunks in; at least 1.
    """
    return BroadcastAlgorithm(
        partial(broadcast_multi_source.broadcast, laps=laps),
        partial(broadcast_multi_source.stages, laps=laps),
    )


SCATTER = shared_out(broadcast_scatter.broadcast, broadcast_scatter.stages)

Fitted = Callable[[int, int, int, Link], BroadcastAlgorithm]
"""(bytes, ranks, sources, link) -> algorithm, cut so that it takes the least time."""


def _fitted_ring(size_bytes: int, ranks: int, sources: int, link: Link) -> BroadcastAlgorithm:
    return ring(broadcast_ring.best_chunks(size_bytes, -(-ranks // sources), link))


def _fitted_laps(size_bytes: int, ranks: int, sources: int, link: Link) -> BroadcastAlgorithm:
    return multi_source(broadcast_multi_source.best_laps(size_bytes, ranks, sources, link))


BROADCASTS: dict[str, Fitted] = {
    "ring": _fitted_ring,
    "k_nomial": lambda *_: k_nomial(2),
    "scatter": lambda *_: SCATTER,
    "multi_source": _fitted_laps,
}
"""By the name in a configuration."""


def chosen(
    choice: str, size_bytes: int, ranks: int, sources: int, link: Link = ASSUMED
) -> BroadcastAlgorithm:
    """Return an algorithm, cut as the link asks for.

    Args:
        choice: One of `BROADCASTS`; "auto" for the one that takes the least time by its formula.
        size_bytes: Of what is to be brought.
        ranks: Number of ranks.
        sources: How many of them hold it.
        link: Between the ranks.

    Example:
        >>> chosen("auto", 100, 8, 1).stages(100, 8, 1) == k_nomial(2).stages(100, 8, 1)
        True
    """
    case = size_bytes, ranks, sources
    if choice != "auto":
        return BROADCASTS[choice](*case, link)
    fitted = [fit(*case, link) for fit in BROADCASTS.values()]
    return min(fitted, key=lambda algorithm: link.time_s(algorithm.stages(*case)))
