"""TaggedTransport: exchanges made of named messages that match in any order."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key, Received, Transport


class _Pending:
    """One exchange under way: counts down its messages, then reports once."""

    def __init__(self, messages: int, received: Received, done: Done) -> None:
        self._left = messages
        self._done = done
        self._received = received
        self._lock = threading.Lock()

    def arrived(self, peer: int, buffer: torch.Tensor) -> None:
        with self._lock:
            self._received[peer] = buffer
        self.finish_one()

    def finish_one(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._done(self._received)


class TaggedTransport(Transport):
    """Base of transports that send and receive single messages."""

    def ordered(self, operation: Operation) -> bool:
        """Only the backend's own collectives are."""
        return isinstance(operation, BackendAllReduce)

    def exchange(self, key: Key, exchange: Exchange, place: int, done: Done) -> None:
        """Post the receives, then queue the sends. Empty messages are not sent at all."""
        outgoing = {p: b for p, b in exchange.outgoing.items() if b.numel()}
        incoming = {p: b for p, b in exchange.incoming.items() if b.numel()}
        empty = {p: b for p, b in exchange.incoming.items() if not b.numel()}
        pending = _Pending(len(outgoing) + len(incoming) + 1, empty, done)
        for peer, buffer in incoming.items():
            self._expect(peer, key, buffer, exchange.exact, pending)
        for peer, buffer in outgoing.items():
            self.send(peer, key, buffer, place, pending.finish_one)
        pending.finish_one()

    def _expect(
        self, peer: int, key: Key, buffer: torch.Tensor, exact: bool, pending: _Pending
    ) -> None:
        self.receive(peer, key, buffer, exact, lambda filled: pending.arrived(peer, filled))

    @abstractmethod
    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, place: int, sent: Callable[[], None]
    ) -> None:
        """Queue one message; `sent` is called when `buffer` may be reused."""

    @abstractmethod
    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Expect one message; `arrived` is called with the filled front of `buffer`."""

    def missing(self, key: Key) -> Sequence[int]:
        """Ask every inbox."""
        return [peer for peer in range(self.size) if self.waits_for(peer, key)]

    @abstractmethod
    def waits_for(self, peer: int, key: Key) -> bool:
        """Whether a message from a peer was asked for and has not come."""

    @abstractmethod
    def fail(self, error: CompressaError) -> None:
        """End everything under way."""
