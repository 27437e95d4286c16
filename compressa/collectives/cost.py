"""What a collective costs: messages and bytes of each hop, and the time that they take.

The time of a hop is a for each message, b for each byte of the busier direction of the busiest
port, and g for each byte that is combined there (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005).

Segments of a sum overlap. The first one takes all of its hops, one after the other; after that, one
ends whenever the busiest part has done its share of it: sending, receiving or combining at the
busiest rank. So S segments take the time of one, and S - 1 times its longest share. Where each hop
sends as much as it receives, that is the time of the plain formula, without most of the
reductions; a tree's root receives in one half of the hops and sends in the other, so that it takes
half the time and a bit.

The first segment has the port of such a root to itself in its first hop only. In the next ones the
segments behind it, which have come up shorter branches, are on their way as well, and take their
share of the port. A hop that hears from a branch of its own waits for as much of each earlier hop
as it sends itself, or for as much as is left of it, and the way out begins so much later. (The rest
is taken to pass evenly. Where ranks fold, and in trees of many segments, they come in bunches: that
takes up to 1.25 times as long with 8 ranks, and 1.4 with 32.)

Ranks that share a machine, or a switch, slow each other down. So there are two of a and of b: with
all ranks at work, and between two while the others are silent. A hop at which only a share of the
ranks is at work takes the busiest of them what it takes a pair, but never less than that share of
what it takes all; and a sum never takes less than the shares of all its hops, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Way = Literal["both", "in", "out"]


class Stage(NamedTuple):
    """One hop, at the rank that has most to do in it.

    Attributes:
        messages: That it sends, or receives, whichever are more.
        port_bytes: That it sends, or receives.
        reduced_bytes: That it combines.
        way: Whether it sends and receives as much, or one of them only.
        depth: Of what comes in one way, how many hops have brought it together before; all that
            are before this one unless given.
        share: What all ranks send in this hop, over what they would if each sent as much as the
            busiest one sends, or receives.
    """

    messages: int
    port_bytes: float
    reduced_bytes: float = 0.0
    way: Way = "both"
    depth: int | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Link:
    """What connects the ranks, each with a port of its own.

    Attributes:
        message_s: a: what a message takes besides its bytes, with all ranks at work.
        byte_s: b: seconds for each byte, with all ranks at work.
        reduce_s: g: seconds for each byte that is combined.
        pair_message_s: a between two ranks while the others are silent; as with all unless given.
        pair_byte_s: b between two ranks while the others are silent; as with all unless given.
    """

    message_s: float
    byte_s: float
    reduce_s: float = 0.0
    pair_message_s: float | None = None
    pair_byte_s: float | None = None

    def time_s(self, stages: Iterable[Stage], segments: int = 1) -> float:
        """Predict how long hops take, one after the other.

        The same numbers give the same bits everywhere.

        Args:
            stages: The hops, of one segment.
            segments: How many go through these hops, side by side.
        """
        hops = list(stages)
        combining = math.fsum(stage.reduced_bytes * self.reduce_s for stage in hops)
        first = math.fsum([*map(self._port_s, hops), combining])
        incoming, outgoing = (
            math.fsum(self._port_s(stage) for stage in hops if stage.way in ("both", way))
            for way in ("in", "out")
        )
        late = self._late_s(hops, segments) + (segments - 1) * outgoing
        busiest = first + max((segments - 1) * max(incoming, outgoing, combining), late)
        shares = math.fsum(stage.share * self._all_s(stage) for stage in hops)
        return max(busiest, segments * shares)

    def _port_s(self, stage: Stage) -> float:
        """What a hop takes the busiest rank."""
        message_s = self.message_s if self.pair_message_s is None else self.pair_message_s
        byte_s = self.byte_s if self.pair_byte_s is None else self.pair_byte_s
        all_s, pair_s = self._all_s(stage), stage.messages * message_s + stage.port_bytes * byte_s
        return max(stage.share * all_s, min(pair_s, all_s))

    def _all_s(self, stage: Stage) -> float:
        """What a hop takes if all ranks have as much to do as the busiest one."""
        return stage.messages * self.message_s + stage.port_bytes * self.byte_s

    def _late_s(self, hops: Iterable[Stage], segments: int) -> float:
        """How much later the first of several segments is in for those behind it."""
        came_s, before_s = [0.0], 0.0  # the first segment, after so many hops; of one segment
        for stage in hops:
            if stage.way == "in":
                own_s, begun = self._port_s(stage), len(came_s) - 1
                ready_s = came_s[begun if stage.depth is None else min(stage.depth, begun)]
                left_s = max(segments * before_s - ready_s, 0.0)
                came_s.append(ready_s + own_s + min(begun * own_s, left_s))
                before_s += own_s
        return max(max(came_s) - before_s, 0.0)


Symmetry = Callable[[int], bool]
"""Of a number of ranks: whether all have the same to do, but for whom they do it with.

What one of them takes, all of them take then: a simulation needs only one.
"""


def always(ranks: int) -> bool:
    """Ranks differ by a shift around the ring only."""
    return True


def in_pairs(ranks: int) -> bool:
    """Ranks swap in pairs; those beyond a power of two fold, which is a part of its own."""
    return ranks.bit_count() == 1


def never(ranks: int) -> bool:
    """There is a root, or ranks that speak for others."""
    return False
