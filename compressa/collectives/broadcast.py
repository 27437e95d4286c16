"""Broadcast algorithms by name: bytes from the members that hold them to all others of a group.

With several sources, each serves a share of the other members, except where an algorithm says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch

from compressa.collectives import (
    broadcast_k_nomial,
    broadcast_multi_source,
    broadcast_ring,
    broadcast_scatter,
)
from compressa.collectives.base import Program, Together
from compressa.collectives.cost import Link, Stage
from compressa.collectives.hop import idle
from compressa.collectives.passing import check_sources, cut
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


def segmented(algorithm: BroadcastAlgorithm, segments: int) -> Broadcast:
    """Cut the bytes into so many parts: while one is awaited, another is on the wire."""

    def broadcast(data: torch.Tensor, group: RankGroup, sources: Sequence[int]) -> Program[None]:
        check_sources(group, sources)
        parts = cut(data, segments)
        programs = [algorithm.broadcast(part, group, sources) for part in parts]
        yield Together(programs, len(algorithm.stages(0, group.size, len(sources))))

    return broadcast


def pipelined(algorithm: BroadcastAlgorithm, chunks: int) -> BroadcastAlgorithm:
    """Cut the bytes into chunks that pass one after the other, each as the algorithm says."""

    def stages(size_bytes: int, ranks: int, sources: int) -> list[Stage]:
        return algorithm.stages(-(-size_bytes // chunks), ranks, sources) * chunks

    return BroadcastAlgorithm(segmented(algorithm, chunks), stages)


def ring(chunks: int) -> BroadcastAlgorithm:
    """Along a ring, in so many pieces."""
    return shared_out(
        partial(broadcast_ring.broadcast, chunks=chunks),
        partial(broadcast_ring.stages, chunks=chunks),
    )


def k_nomial(k: int) -> BroadcastAlgorithm:
    """Down a tree, in which each hop has k times as many ranks that hold the bytes."""
    return shared_out(
        partial(broadcast_k_nomial.broadcast, k=k), partial(broadcast_k_nomial.stages, k=k)
    )


def multi_source(rounds: int) -> BroadcastAlgorithm:
    """From all sources to all others at once, in so many rounds."""
    return BroadcastAlgorithm(
        partial(broadcast_multi_source.broadcast, rounds=rounds),
        partial(broadcast_multi_source.stages, rounds=rounds),
    )


BROADCASTS = {
    "binomial": k_nomial(2),
    "binomial_pipelined": pipelined(k_nomial(2), 8),
    "multi_source": multi_source(1),
    "multi_source_rounds": multi_source(4),
    "quadrinomial": k_nomial(4),
    "quadrinomial_pipelined": pipelined(k_nomial(4), 8),
    "ring_direct": ring(1),
    "ring_pipelined": ring(16),
    "scatter_all_gather": shared_out(broadcast_scatter.broadcast, broadcast_scatter.stages),
}

Choice = Literal["auto", "ring", "k_nomial", "scatter", "multi_source"]


def chosen(
    choice: Choice, size_bytes: int, ranks: int, sources: int, link: Link = ASSUMED
) -> BroadcastAlgorithm:
    """Return an algorithm, cut as the link asks for.

    Args:
        choice: Which; "auto" for the one that takes the least time by its formula.
        size_bytes: Of what is to be brought.
        ranks: Number of ranks.
        sources: How many of them hold it.
        link: Between the ranks.

    Example:
        >>> chosen("auto", 100, 8, 1) == chosen("k_nomial", 100, 8, 1)
        True
    """
    served = -(-ranks // sources)
    chunks = broadcast_ring.best_chunks(size_bytes, served, link)
    rounds = broadcast_multi_source.best_rounds(size_bytes, ranks, sources, link)
    algorithms = {
        "k_nomial": BROADCASTS["binomial"],
        "ring": ring(chunks),
        "scatter": BROADCASTS["scatter_all_gather"],
        "multi_source": multi_source(rounds),
    }
    if choice != "auto":
        return algorithms[choice]
    times_s = [link.time_s(row.stages(size_bytes, ranks, sources)) for row in algorithms.values()]
    return list(algorithms.values())[times_s.index(min(times_s))]
