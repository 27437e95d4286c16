"""Alone: the transport of a world of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key, Traffic, Transport


class Alone(Transport):
    """There is nobody to talk to: every exchange is empty and done at once."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.epoch = 0

    def ordered(self, operation: Operation) -> bool:
        """Nothing needs an order."""
        return False

    @property
    def sums(self) -> bool:
        """There is nothing to sum with."""
        return False

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Done."""
        done({})

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Done: the sum over one rank is what it has."""
        done({})

    def missing(self, key: Key) -> Sequence[int]:
        """Nobody is missing."""
        return ()

    @property
    def traffic(self) -> Traffic:
        """Nothing is sent."""
        return Traffic(0, 0)

    def fail(self, error: CompressaError) -> None:
        """Nothing is under way."""

    def close(self, timeout_s: float) -> None:
        """Nothing is held."""
