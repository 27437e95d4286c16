"""Alone: the transport of a world of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key, Traffic, Transport


class Alone(Transport):
    """The world of one rank: every exchange is empty, and done before the call returns.

    It has no thread, sends nothing and never fails.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.epoch = 0

    def ordered(self, operation: Operation) -> bool:
        """Return False: nobody else launches anything."""
        return False

    @property
    def sums(self) -> bool:
        """False: no backend is needed for the sum over one rank."""
        return False

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Call `done` with an empty result, now; see `Transport.exchange`."""
        done({})

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Call `done` now: the sum over one rank is what its tensor holds already."""
        done({})

    def missing(self, key: Key) -> Sequence[int]:
        """Return nobody: there is no other rank."""
        return ()

    @property
    def traffic(self) -> Traffic:
        """Always 0 bytes in 0 messages."""
        return Traffic(0, 0)

    def fail(self, error: CompressaError) -> None:
        """Do nothing: no exchange is ever under way."""

    def close(self, timeout_s: float) -> None:
        """Do nothing, at once: nothing is held."""
