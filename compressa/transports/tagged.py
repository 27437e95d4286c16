"""TaggedTransport: exchanges made of named messages that match in any order."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key, Received, Transport


class _Pending:
    """One exchange under way: crosses off its messages, then reports once."""

    __slots__ = ("_done", "_lock", "received", "unheard", "unsent")

    def __init__(self, exchange: Exchange, done: Done) -> None:
        self.received: Received = {}
        self.unheard, self.unsent = set[int](), set[int]()
        self._done = done
        self._lock = threading.Lock()
        for peer, buffer in exchange.incoming.items():
            if buffer.numel():
                self.unheard.add(peer)
            else:
                self.received[peer] = buffer
        for peer, buffer in exchange.outgoing.items():
            if buffer.numel():
                self.unsent.add(peer)

    @property
    def missing(self) -> list[int]:
        """Peers whose message has not come, or that have not taken theirs."""
        with self._lock:
            return sorted(self.unheard | self.unsent)

    def arrived(self, peer: int, buffer: torch.Tensor) -> None:
        with self._lock:
            self.received[peer] = buffer
            self.unheard.discard(peer)
            finished = not (self.unheard or self.unsent)
        if finished:
            self._done(self.received)

    def sent(self, peer: int) -> None:
        with self._lock:
            self.unsent.discard(peer)
            finished = not (self.unheard or self.unsent)
        if finished:
            self._done(self.received)


class TaggedTransport(Transport):
    """Base of transports that send and receive single messages, which match by their names.

    A subclass has `send`, `receive` and `fail`, and what `Transport` asks for besides.
    """

    def __init__(self) -> None:
        self._pending: dict[Key, _Pending] = {}

    def ordered(self, operation: Operation) -> bool:
        """Return True for the backend's own collectives only."""
        return isinstance(operation, BackendAllReduce)

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Post the receives, then queue the sends. Empty messages are not sent at all.

        Each peer is crossed off after its own call here, so nothing is done before the last one.
        """
        pending = _Pending(exchange, partial(self._finish, key, done))
        if not (pending.unheard or pending.unsent):
            done(pending.received)
            return
        self._pending[key] = pending
        for peer, buffer in exchange.incoming.items():
            if buffer.numel():
                self.receive(peer, key, buffer, exchange.exact, partial(pending.arrived, peer))
        for peer, buffer in exchange.outgoing.items():
            if buffer.numel():
                self.send(peer, key, buffer, priority, partial(pending.sent, peer))

    def missing(self, key: Key) -> Sequence[int]:
        """Return the peers whose message has not come, or that have not taken theirs, ascending."""
        pending = self._pending.get(key)
        return [] if pending is None else pending.missing

    def _finish(self, key: Key, done: Done, received: Received | CompressaError) -> None:
        if self._pending.pop(key, None) is not None:
            done(received)

    def withdraw(self, key: Key) -> None:
        """Have an exchange that is under way never be done; its messages go on."""
        self._pending.pop(key, None)

    @abstractmethod
    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Queue one message; never blocks.

        Args:
            peer: Whom it is for.
            key: Its name.
            buffer: uint8, contiguous, not empty; lent until `sent` is called.
            priority: Its number in the plan; the smallest of a step goes first.
            sent: Called once, when `buffer` may be reused.
        """

    @abstractmethod
    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Expect one message; never blocks.

        Args:
            peer: Who sends it.
            key: Its name.
            buffer: uint8, contiguous, not empty; lent until `arrived` is called.
            exact: Whether it must fill the buffer.
            arrived: Called once, with the filled front of `buffer`; in this call if it is here.

        Raises:
            PayloadError: It has come already and has the wrong length.
        """

    @abstractmethod
    def fail(self, error: CompressaError) -> None:
        """End everything under way: nothing is written to lent buffers from now on."""
