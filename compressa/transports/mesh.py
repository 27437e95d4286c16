"""Mesh: what transports share that have a link of their own to every other rank."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from compressa.errors import CompressaError, PeerLost
from compressa.transports.base import Key, OnCome
from compressa.transports.frames import prepare, way
from compressa.transports.inbox import Inbox
from compressa.transports.tagged import TaggedTransport


class MeshTransport(TaggedTransport):
    """Inboxes of all peers, departures, and the first failure.

    A subclass has the links: `send`, `end_link`, `attach`, `traffic`, `close`, and sums.

    Args:
        rank: This rank.
        size: Number of ranks.
        epoch: Epoch of the transport.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        any_order_bytes: Length of the chunks that a peer may send in any order; None if it may not.

    Attributes:
        name: What `exchange.transport` calls it.
        inboxes: By peer, where its links bring what it sends.
    """

    name: ClassVar[str]

    def __init__(
        self,
        rank: int,
        size: int,
        epoch: int,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
        any_order_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = size
        self.epoch = epoch
        self.inboxes = {
            peer: Inbox(peer, early_bytes, any_order_bytes, way(peer, rank, self.name))
            for peer in range(size)
            if peer != rank
        }
        prepare()
        self._failed = failed
        self._lock = threading.Lock()
        self._dead = False
        self._gone: set[int] = set()
        self._lost: dict[int, PeerLost] = {}

    def hear(self, on_come: OnCome | None) -> None:
        """Have the inboxes report when a message's first byte and its last are here."""
        for inbox in self.inboxes.values():
            inbox.hear(on_come)

    @property
    def gone(self) -> frozenset[int]:
        """Peers that have said goodbye; from any thread."""
        return frozenset(self._gone)

    @property
    def lost(self) -> Mapping[int, PeerLost]:
        """Peers whose link has failed, and how; not only the first; from any thread."""
        return dict(self._lost)

    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Ask the peer's inbox; see `TaggedTransport.receive`.

        If the peer has left without sending it, that is reported as a `PeerLost`.
        """
        inbox = self.inboxes[peer]
        inbox.expect(key, buffer, exact, arrived)
        # What it sent before it left may have been waiting here.
        if peer in self._gone and inbox.waits_for(key):
            self.report(has_left(peer))

    def listen(
        self, peer: int, key: Key, buffer: torch.Tensor, arrived: Callable[[torch.Tensor], None]
    ) -> None:
        """Take a message that may never come: a peer that leaves does not owe it.

        Args:
            peer: Who may send it.
            key: Its name.
            buffer: uint8, not empty; the most that it may have.
            arrived: Called once, with the filled front of `buffer`, if it comes.

        Raises:
            PayloadError: It has come already and is longer than `buffer`.
        """
        self.inboxes[peer].expect(key, buffer, False, arrived, owed=False)

    def abandon(self, key: Key) -> None:
        """Wait no longer for an exchange: its `done` is never called, and no peer owes it.

        What still comes of it goes to its buffers, which are kept until `forget`.
        """
        self.withdraw(key)
        for inbox in self.inboxes.values():
            inbox.disown(key)

    def forget(self, unit: int, step: int) -> None:
        """Free what came, or did not, of a unit's exchanges in steps up to this one.

        None of their messages may still be on its way; see `Inbox.forget`.
        """
        for inbox in self.inboxes.values():
            inbox.forget(unit, step)

    def must_be_here(self, peer: int) -> None:
        """Report a peer that left before something was sent to it, which nobody would take.

        For `send`, which goes on: the report ends the transport.
        """
        if peer in self._gone:
            self.report(has_left(peer))

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; the peers' goodbyes end the links.

        Nothing that comes is written to lent buffers any more, and nothing is reported.
        """
        with self._lock:
            self._dead = True
        for peer, inbox in self.inboxes.items():
            self.end_link(peer, drop=True)
            inbox.clear()

    @abstractmethod
    def end_link(self, peer: int, *, drop: bool) -> None:
        """Say goodbye to a peer; never blocks, and may be called again.

        Args:
            peer: Whose link.
            drop: Forget what is queued, and hear nothing more; else the goodbye comes after it.
        """

    def link_failed(self, error: CompressaError) -> None:
        """Report the failure of a link, unless it is the loss of a peer that had said goodbye."""
        if isinstance(error, PeerLost):
            if error.rank in self._gone:
                return
            self._lost.setdefault(error.rank, error)
        self.report(error)

    def report(self, error: CompressaError) -> None:
        """Call `failed` with a failure, if it is the first, and `fail` was not called before."""
        with self._lock:
            first = not self._dead
            self._dead = True
        if first:
            self._failed(error)

    def leave(self, peer: int) -> None:
        """Note that a peer said goodbye: answer in kind, and report it if it owes anything."""
        self._gone.add(peer)
        self.end_link(peer, drop=False)
        if self.inboxes[peer].asked:
            self.report(has_left(peer))


def has_left(peer: int) -> PeerLost:
    """Return the error for a peer that ended while it was still needed."""
    return PeerLost(peer, f"rank {peer} is lost: it has left the training")
