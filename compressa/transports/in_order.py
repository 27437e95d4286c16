"""InOrder: launches that all ranks make in one order, though some must wait for a number first.

Calls that are paired by their order alone may not overtake each other: if what waits let others
go first, ranks for which it has come sooner would launch in another order. So what comes after it
waits, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Launch = Callable[[], bool]
"""Launches something; returns whether others may be launched after it."""


class InOrder:
    """A queue whose first launch may wait, and then holds up all others. For one thread."""

    def __init__(self) -> None:
        self._launches: deque[Launch] = deque()

    def add(self, launch: Launch) -> None:
        """Launch what comes after all that was added before: now, if nothing waits."""
        self._launches.append(launch)
        if len(self._launches) == 1:
            self._go_on()

    def resume(self, rest: Launch) -> None:
        """Have the first launch, which has returned False, go on with something else.

        A launch that fails is never resumed: what comes after it would meet the wrong partner.
        """
        self._launches[0] = rest
        self._go_on()

    def _go_on(self) -> None:
        while self._launches and self._launches[0]():
            self._launches.popleft()
