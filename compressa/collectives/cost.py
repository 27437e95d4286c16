"""What a collective costs: messages and bytes of each hop, and the time that they take.

The time of a hop is a for each message, b for each byte of the busier direction of the busiest
port, and g for each byte that is combined there (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005).

Segments of a sum overlap. The first one takes all of its hops, one after the other; after that, one
ends whenever the busiest part has done its share of it: sending, receiving or combining at the
busiest rank. So S segments take the time of one, and S - 1 times its longest share. Where each hop
sends as much as it receives, that is the time of the plain formula, without most of the
reductions; a tree's root receives in one half of the hops and sends in the other, so that it takes
half the time and a bit. (The segments are taken to pass evenly. To the root of a tree, and where
ranks fold, they come in bunches: that takes up to 1.3 times as long with 8 ranks, and 1.5 with 32.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    """

    messages: int
    port_bytes: float
    reduced_bytes: float = 0.0
    way: Way = "both"


@dataclass(frozen=True)
class Link:
    """What connects the ranks, each with a port of its own.

    Attributes:
        message_s: a: what a message takes besides its bytes.
        byte_s: b: seconds for each byte.
        reduce_s: g: seconds for each byte that is combined.
    """

    message_s: float
    byte_s: float
    reduce_s: float = 0.0

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
        return first + (segments - 1) * max(incoming, outgoing, combining)

    def _port_s(self, stage: Stage) -> float:
        return stage.messages * self.message_s + stage.port_bytes * self.byte_s
