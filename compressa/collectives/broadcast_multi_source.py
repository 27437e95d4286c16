"""Multi-source broadcast: ranks that all hold the bytes feed them into a ring of those that do not.

The receivers form a ring, which the sources enter at equal distances; each has chunks of its own to
feed in, that go round to all receivers. As long as no chunk comes round to where a source enters,
it feeds in new ones; then it pauses, so that every port hears from one rank at a time (no incast),
and from the first hops on all are busy. Where a ring of one source takes R-1 hops to fill, this
takes L-1, with R receivers and L = ceil(R/S) of them between two of S sources; the floor, m b, is
reached where there are as many sources as receivers.

The bytes go round in G laps of R chunks each, c = m / (G R). More laps fill the ring faster;
before a source begins another, the rank that it takes turns with says so in a message of one byte.
Cost: (G R + L-1) (a + c b) + (G-1) (a + b), the last only where S > 1. With more sources than
receivers, some have nothing to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from compressa.collectives.base import Program
from compressa.collectives.cost import Link, Stage
from compressa.collectives.passing import check_sources, cut, pass_hop
from compressa.collectives.rank_group import RankGroup


class _Ring(NamedTuple):
    """Who says what in which hop.

    Attributes:
        receivers: How many.
        entries: For each source, which receiver it feeds.
        laps: How often each source feeds chunks in.
    """

    receivers: int
    entries: Sequence[int]
    laps: int

    @classmethod
    def of(cls, ranks: int, sources: int, laps: int) -> _Ring:
        receivers = ranks - sources
        feeding = min(receivers, sources)
        return cls(receivers, [receivers * i // feeding for i in range(feeding)], laps)

    @property
    def lengths(self) -> list[int]:
        """For each source, how many chunks it feeds in a lap: from the entry before to its own.

        So many hops pass before the first chunk of another source comes along.
        """
        befores = [self.entries[-1] - self.receivers, *self.entries] if self.entries else []
        return [own - before for own, before in zip(self.entries, befores, strict=False)]

    @property
    def hops(self) -> int:
        return self.laps * self.receivers + max(self.lengths) - 1 if self.entries else 0

    def heard(self, receiver: int, hop: int) -> tuple[int, int] | None:
        """What a receiver hears in a hop: number of the chunk, and of its source.

        The number is -1 instead of the source's where another receiver passes it on.
        """
        first = 0
        for source, (entry, length) in enumerate(zip(self.entries, self.lengths, strict=True)):
            distance = (receiver - entry) % self.receivers
            past, phase = divmod(hop - distance, self.receivers)
            if 0 <= past < self.laps and phase < length:
                return past * self.receivers + first + phase, -1 if distance else source
            first += length
        return None

    def hands_over(self, hop: int) -> bool:
        """Whether it is the last hop of a lap that another one follows."""
        past, phase = divmod(hop + 1, self.receivers)
        return len(self.entries) > 1 and not phase and past < self.laps


def broadcast(
    data: torch.Tensor, group: RankGroup, sources: Sequence[int], laps: int
) -> Program[None]:
    """Bring the sources' bytes to all of the group.

    Args:
        data: 1-D uint8, as long on every rank; overwritten where this rank is no source.
        group: Who takes part.
        sources: Their indices in the group.
        laps: G, 1 at least.

    Raises:
        ValueError: The sources are not different members.
    """
    check_sources(group, sources)
    receivers = [index for index in range(group.size) if index not in sources]
    ring = _Ring.of(group.size, len(sources), laps)
    parts = cut(data, max(1, laps * len(receivers)))
    ranks = [group.at(index) for index in receivers]
    feeding = [group.at(index) for index in sources[: len(ring.entries)]]
    if group.index in receivers:
        program = _receive(ring, receivers.index(group.index), ranks, feeding, parts)
    else:
        program = _feed(ring, sources.index(group.index), ranks, parts)
    for outgoing, incoming in program:
        yield from pass_hop(outgoing, incoming)


_Hop = tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]


def _receive(
    ring: _Ring,
    index: int,
    ranks: Sequence[int],
    feeding: Sequence[int],
    parts: Sequence[torch.Tensor],
) -> Iterator[_Hop]:
    """What a receiver sends and hears in each hop."""
    after = (index + 1) % len(ranks)
    go = torch.zeros(1, dtype=torch.uint8, device=parts[0].device)
    for hop in range(ring.hops):
        outgoing, incoming = {}, {}
        if (chunk := ring.heard(index, hop)) is not None:
            number, source = chunk
            incoming[ranks[index - 1] if source < 0 else feeding[source]] = parts[number]
        chunk = ring.heard(after, hop)
        if chunk is not None and chunk[1] < 0:
            outgoing[ranks[after]] = parts[chunk[0]]
        if ring.hands_over(hop) and after in ring.entries:
            outgoing[feeding[ring.entries.index(after)]] = go
        yield outgoing, incoming


def _feed(
    ring: _Ring, source: int, ranks: Sequence[int], parts: Sequence[torch.Tensor]
) -> Iterator[_Hop]:
    """What a source sends and hears in each hop."""
    feeds = source < len(ring.entries)
    entry = ring.entries[source] if feeds else 0
    go = torch.zeros(1, dtype=torch.uint8, device=parts[0].device)
    for hop in range(ring.hops):
        chunk = ring.heard(entry, hop) if feeds else None
        outgoing = {ranks[entry]: parts[chunk[0]]} if chunk and chunk[1] == source else {}
        yield outgoing, {ranks[entry - 1]: go} if feeds and ring.hands_over(hop) else {}


def stages(size_bytes: int, ranks: int, sources: int, laps: int) -> list[Stage]:
    """Return what each hop of a broadcast costs, in their order; none if all ranks are sources.

    Args:
        size_bytes: Of what is brought.
        ranks: How many hold it in the end, the sources included.
        sources: How many of them hold it before, 1 at least.
        laps: G, 1 at least.
    """
    ring = _Ring.of(ranks, sources, laps)
    chunk = size_bytes / max(1, laps * ring.receivers)
    plain, last = Stage(1, chunk), Stage(2, chunk + 1)
    return [last if ring.hands_over(hop) else plain for hop in range(ring.hops)]


def best_laps(size_bytes: int, ranks: int, sources: int, link: Link) -> int:
    """Return how many laps cost least.

    Args:
        size_bytes: Of what is brought.
        ranks: How many they are.
        sources: How many of them hold it.
        link: Between them.

    Raises:
        ValueError: Its messages cost nothing.
    """
    if not link.message_s:
        raise ValueError("without a cost for each message, ever smaller chunks cost ever less")
    ring = _Ring.of(ranks, sources, 1)
    filling_s = (max(ring.lengths, default=1) - 1) * size_bytes * link.byte_s
    messages = ring.receivers * (ring.receivers + (len(ring.entries) > 1))
    return max(1, round(math.sqrt(filling_s / (max(messages, 1) * link.message_s))))
