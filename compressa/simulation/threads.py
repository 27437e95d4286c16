"""Threads: so many computations at a time, in the order in which they were submitted."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from compressa.transports.loopback import VirtualClock


class Threads:
    """The codec threads of a rank.

    Args:
        clock: The clock.
        count: How many there are.
    """

    def __init__(self, clock: VirtualClock, count: int) -> None:
        self._clock = clock
        self._free_s = [0.0] * count

    def submit(self, seconds: float, ended: Callable[[float], None]) -> None:
        """Have a thread compute for so long; call back at its end with when it began."""
        started_s = max(self._clock.now_s, self._free_s[0])
        heapq.heapreplace(self._free_s, started_s + seconds)
        self._clock.at(started_s + seconds, partial(ended, started_s))
