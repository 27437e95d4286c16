"""Mesh: what transports share that have a link of their own to every other rank."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from compressa.errors import CompressaError, PeerLost
from compressa.transports.base import Key
from compressa.transports.frames import prepare, way
from compressa.transports.inbox import Inbox
from compressa.transports.tagged import TaggedTransport


class MeshTransport(TaggedTransport):
    """Inboxes of all peers, departures, and the first failure.

    Attributes:
        name: What `exchange.transport` calls it.

    Args:
        rank: This rank.
        size: Number of ranks.
        epoch: Epoch of the transport.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        any_order_bytes: Length of the chunks that a peer may send in any order; None if it may not.
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

    @property
    def gone(self) -> frozenset[int]:
        """Peers that have said goodbye."""
        return frozenset(self._gone)

    @property
    def lost(self) -> Mapping[int, PeerLost]:
        """Peers whose link has failed, and how; not only the first."""
        return dict(self._lost)

    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Ask the peer's inbox."""
        inbox = self.inboxes[peer]
        inbox.expect(key, buffer, exact, arrived)
        # What it sent before it left may have been waiting here.
        if peer in self._gone and inbox.waits_for(key):
            self.report(has_left(peer))

    def listen(
        self, peer: int, key: Key, buffer: torch.Tensor, arrived: Callable[[torch.Tensor], None]
    ) -> None:
        """Take a message that may never come: a peer that leaves does not owe it."""
        self.inboxes[peer].expect(key, buffer, False, arrived, owed=False)

    def abandon(self, key: Key) -> None:
        """Wait no longer for an exchange; what still comes of it goes to its buffers, unseen."""
        self.withdraw(key)
        for inbox in self.inboxes.values():
            inbox.disown(key)

    def forget(self, unit: int, step: int) -> None:
        """Free what came, or did not, of a unit's exchanges in steps up to this one."""
        for inbox in self.inboxes.values():
            inbox.forget(unit, step)

    def must_be_here(self, peer: int) -> None:
        """Report a peer that left before something was sent to it, which nobody would take."""
        if peer in self._gone:
            self.report(has_left(peer))

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; the peers' goodbyes end the links."""
        with self._lock:
            self._dead = True
        for peer, inbox in self.inboxes.items():
            self.end_link(peer, drop=True)
            inbox.clear()

    @abstractmethod
    def end_link(self, peer: int, *, drop: bool) -> None:
        """Say goodbye to a peer, after what is queued; or drop that, and hear nothing more."""

    def link_failed(self, error: CompressaError) -> None:
        """Report a failure, unless it is of a peer that had said goodbye."""
        if isinstance(error, PeerLost):
            if error.rank in self._gone:
                return
            self._lost.setdefault(error.rank, error)
        self.report(error)

    def report(self, error: CompressaError) -> None:
        """Report a failure, if it is the first."""
        with self._lock:
            first = not self._dead
            self._dead = True
        if first:
            self._failed(error)

    def leave(self, peer: int) -> None:
        """A peer said goodbye: answer in kind, and mind it if anything was due from it."""
        self._gone.add(peer)
        self.end_link(peer, drop=False)
        if self.inboxes[peer].asked:
            self.report(has_left(peer))


def has_left(peer: int) -> PeerLost:
    """Say in one sentence that a peer ended while it was still needed."""
    return PeerLost(peer, f"rank {peer} is lost: it has left the training")
