"""What a collective costs: messages and bytes of each hop, and the time that they take.

The time of a hop is a for each message, b for each byte of the busier direction of the busiest
port, and g for each byte that is combined there (Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Stage(NamedTuple):
    """One hop, at the rank that has most to do in it.

    Attributes:
        messages: That it sends, or receives, whichever are more.
        port_bytes: That it sends, or receives.
        reduced_bytes: That it combines.
    """

    messages: int
    port_bytes: float
    reduced_bytes: float = 0.0


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

    def time_s(self, stages: Iterable[Stage]) -> float:
        """Predict how long hops take, one after the other."""
        return sum(
            s.messages * self.message_s
            + s.port_bytes * self.byte_s
            + s.reduced_bytes * self.reduce_s
            for s in stages
        )
