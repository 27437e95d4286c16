"""Hierarchical: sum within each host first, then across hosts, then share within each host.

What crosses between hosts is as if each were one rank; links inside a host are mostly much faster.
Where all hosts have equally many ranks, each host reduce-scatters by ring, then the ranks at equal
members sum across hosts, all members at once, then each host all-gathers by ring (as in Goyal et
al., "Accurate, large minibatch SGD", 2017). With g ranks on each of N hosts and a ring across,
cost: 2 (g-1) a_in + 2 n (g-1)/g b_in + 2 (N-1) a_out + 2 n/g (N-1)/N b_out + reductions.

Hosts of unequal size reduce to their first rank and share from it, by binomial trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from compressa.collectives import ring, tree
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.algorithms import Algorithm
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.hop import idle
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch

_LAST_HOP = 127  # no other message in the same author's name has come so far


@dataclass(frozen=True)
class Topology:
    """Which ranks share a host.

    Attributes:
        hosts: The ranks of each; at least one.

    Raises:
        ValueError: A host without ranks, or a rank on two of them.
    """

    hosts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.hosts or not all(self.hosts):
            raise ValueError("a topology needs hosts, and each of them a rank")
        if len(set(self)) < len(list(self)):
            raise ValueError(f"a rank is on two hosts: {self.hosts}")

    @classmethod
    def of(cls, hosts: Sequence[str]) -> Topology:
        """Return the topology of ranks 0, 1, 2 and so on.

        Args:
            hosts: By rank, the name of its host; at least one.
        """
        ranks: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            ranks.setdefault(host, []).append(rank)
        return cls(tuple(map(tuple, ranks.values())))

    def __iter__(self) -> Iterator[int]:
        """All ranks."""
        return (rank for host in self.hosts for rank in host)

    @cached_property
    def most(self) -> int:
        """Ranks of the largest host."""
        return max(map(len, self.hosts))

    @cached_property
    def equal(self) -> bool:
        """Whether all hosts have equally many ranks."""
        return min(map(len, self.hosts)) == self.most

    def inside(self, rank: int) -> RankGroup:
        """Return the ranks of a rank's own host, as its group; the rank must be of the topology."""
        host = next(host for host in self.hosts if rank in host)
        return RankGroup(host, host.index(rank))

    def across(self, rank: int) -> RankGroup:
        """Return the ranks of the same index on all hosts that have one, as a rank's group."""
        index = self.inside(rank).index
        ranks = [host[index] for host in self.hosts if index < len(host)]
        return RankGroup(ranks, ranks.index(rank))


def hierarchical(
    topology: Topology, across: Algorithm, inside: Accumulator | None = None
) -> Algorithm:
    """Make an algorithm of two levels.

    Args:
        topology: All ranks of the group that it will be used for.
        across: Sums between hosts.
        inside: Makes the messages within a host, of the same values, if they differ; see `by_host`.
    """

    def all_reduce(
        values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
    ) -> Program[None]:
        if set(group.ranks) != set(topology):
            raise ValueError(f"the topology {topology.hosts} is not that of {list(group.ranks)}")
        rank = group.at(group.index)
        return by_host(inside or values, values, span, rank, scratch, topology, across)

    def all_stages(size_bytes: int, ranks: int) -> list[Stage]:
        return in_order(*stages(size_bytes, topology, across))

    return Algorithm(all_reduce, all_stages)


def by_host(
    inside: Accumulator,
    outside: Accumulator,
    span: Span,
    rank: int,
    scratch: Scratch,
    topology: Topology,
    across: Algorithm,
) -> Program[None]:
    """Sum over all ranks of a topology, with messages of two kinds.

    Args:
        inside: Makes those within a host, dense perhaps.
        outside: Makes those between hosts, compressed perhaps, of the same values.
        span: What is summed; it may be cut where both may.
        rank: This rank.
        scratch: Memory for what comes in.
        topology: Which ranks share a host.
        across: Sums between hosts.
    """
    way = _by_index if topology.equal else _by_leaders
    return way(inside, outside, span, rank, scratch, topology, across)


def _by_index(
    inside: Accumulator,
    outside: Accumulator,
    span: Span,
    rank: int,
    scratch: Scratch,
    topology: Topology,
    across: Algorithm,
) -> Program[None]:
    """Each rank of a host sums its share across hosts."""
    host, peers = topology.inside(rank), topology.across(rank)
    spans = span.cut(host.size, math.lcm(inside.align_elems, outside.align_elems))
    # The ranks of an index hold the same by then, and are to make the same of it.
    author = Author(peers.at(0), _LAST_HOP)
    yield from ring.reduce_scatter(inside, spans, host, scratch)
    yield from across.all_reduce(outside, spans[host.index], peers, scratch)
    yield from ring.all_gather(inside, spans, host, scratch, author)


def _by_leaders(
    inside: Accumulator,
    outside: Accumulator,
    span: Span,
    rank: int,
    scratch: Scratch,
    topology: Topology,
    across: Algorithm,
) -> Program[None]:
    """The first rank of each host sums all across hosts."""
    host, peers = topology.inside(rank), topology.across(rank)
    fewer = tree.hops(topology.most) - tree.hops(host.size)
    yield from tree.reduce(inside, span, host, scratch)
    yield from idle(fewer)
    if host.index:
        yield from idle(len(across.stages(0, len(topology.hosts))))
    else:
        yield from across.all_reduce(outside, span, peers, scratch)
    yield from tree.broadcast(inside, span, host, scratch, Author(peers.at(0), _LAST_HOP))
    yield from idle(fewer)


def stages(
    size_bytes: int, topology: Topology, across: Algorithm
) -> tuple[list[Stage], list[Stage]]:
    """Return what the hops within a host cost, and what those between hosts do.

    Hosts of unequal size are not in step, so that the time of both is only near what it takes.

    Args:
        size_bytes: Of the values that are summed, as many on each rank.
        topology: Which ranks share a host.
        across: Sums between hosts.
    """
    hosts = len(topology.hosts)
    if topology.equal:
        inside = ring.stages(size_bytes, topology.most)
        return inside, across.stages(size_bytes // topology.most, hosts)
    return tree.stages(size_bytes, topology.most), across.stages(size_bytes, hosts)


def in_order(inside: Sequence[Stage], outside: Sequence[Stage]) -> list[Stage]:
    """Return all hops as they come: half of those inside, those between hosts, the other half.

    Args:
        inside: Hops within a host; an even number, as `stages` returns.
        outside: Hops between hosts.
    """
    half = len(inside) // 2
    return [*inside[:half], *outside, *inside[half:]]
