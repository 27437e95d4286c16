"""Fence: a position in a GPU's stream that an exchange of the compiled loop waits for.

A stream that comes to it wakes the loop; no thread of Python comes between.
"""

from __future__ import annotations

import time
from collections import deque
from functools import cache

from compressa.kernels.cpu._jit import c_function
from compressa.transports.lowered import _fence as f
from compressa.transports.lowered._memory import address_of, words

_PAUSE_S = 1e-4
_dropped: list[Fence] = []  # to which a GPU may still come


class Fence:
    """Pending until a stream comes to it.

    Args:
        wake: The file descriptor that is written to then.

    Attributes:
        address: Of its memory, for the function at `signal_function`.
    """

    def __init__(self, wake: int) -> None:
        self._words = words(f.FENCE_WORDS)
        self._words[f.WAKE] = wake
        self.address = address_of(self._words)

    @property
    def reached(self) -> bool:
        """Whether the stream has come to it."""
        return bool(self._words[f.STATE] != f.PENDING)

    @property
    def over(self) -> bool:
        """Whether nobody will touch its memory or its file descriptor any more."""
        return bool(self._words[f.STATE] == f.DONE)

    def drop(self) -> None:
        """Have it wake nobody from now on: its file descriptor is about to be closed."""
        if f.drop(self.address):
            _dropped.append(self)
            return
        while not self.over:  # a thread of CUDA's is between two instructions
            time.sleep(_PAUSE_S)


class Fences:
    """Those of one loop, in the order in which a GPU comes to them.

    Args:
        wake: The loop's file descriptor.
    """

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._pending: deque[Fence] = deque()

    def new(self) -> Fence:
        """Return a new one, which a GPU must come to."""
        while self._pending and self._pending[0].over:
            self._pending.popleft()
        self._pending.append(Fence(self._wake))
        return self._pending[-1]

    def drop(self) -> None:
        """Drop all."""
        while self._pending:
            self._pending.popleft().drop()


@cache
def signal_function() -> int:
    """Return the address of the function of C that signals the fence at an address."""
    return c_function(f.signal)
