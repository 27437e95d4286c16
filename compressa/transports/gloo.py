"""GlooTransport: named messages over Gloo's point-to-point calls, sums by Gloo itself.

It owns its process group: nobody else may use it. The group must have been created on every
rank in the same order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce
from compressa.errors import CompressaError
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Done, Key, OnSent, Traffic
from compressa.transports.mesh import MeshTransport
from compressa.transports.settings import Settings
from compressa.transports.setup import Setup
from compressa.transports.streams import Receiver, Sender


class GlooTransport(MeshTransport):
    """A full mesh of streams between the ranks of a Gloo process group.

    Args:
        group: A Gloo process group of its own.
        settings: Sizes and times of the streams.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
    """

    name = "gloo"

    def __init__(
        self,
        group: dist.ProcessGroup,
        settings: Settings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
    ) -> None:
        super().__init__(group.rank(), group.size(), settings.epoch, early_bytes, failed)
        self._settings = settings
        self._sum = BackendSum(group)
        self._senders = {
            peer: Sender(group, peer, settings, self.link_failed) for peer in self.inboxes
        }
        self._receivers = {
            peer: Receiver(group, peer, settings, inbox, self.link_failed, self.leave)
            for peer, inbox in self.inboxes.items()
        }
        for thread in self._threads():
            thread.start()

    def observe(self, on_sent: OnSent) -> None:
        """Ask the senders."""
        for sender in self._senders.values():
            sender.observe(on_sent)

    @property
    def sums(self) -> bool:
        """Gloo has an all-reduce, which nobody can pace or authenticate."""
        settings = self._settings
        return settings.pacer.rate_bits_per_s is None and not settings.authenticated

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Queue for the peer's sender."""
        self.must_be_here(peer)
        self._senders[peer].send(key, buffer, (key.step, priority), sent)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum with Gloo's own algorithm."""
        self._sum.all_reduce(operation, done)

    @property
    def traffic(self) -> Traffic:
        """Frames, and what the backend's sums must have sent."""
        senders = self._senders.values()
        sent = sum(sender.sent_bytes for sender in senders)
        return Traffic(sent + self._sum.sent_bytes, sum(sender.messages for sender in senders))

    def end_link(self, peer: int, *, drop: bool) -> None:
        """Have the peer's sender say goodbye."""
        if drop:
            self._receivers[peer].deafen()
        self._senders[peer].close(drop=drop)

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone and wait for theirs."""
        for sender in self._senders.values():
            sender.close()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads():
            thread.join(max(0.0, end_s - time.monotonic()))
        self._sum.close()

    def _threads(self) -> list[threading.Thread]:
        receiving = [receiver.thread for receiver in self._receivers.values()]
        return receiving + [sender.thread for sender in self._senders.values()]


def open_gloo(setup: Setup) -> GlooTransport:
    """Open streams to every other rank; see `Entry.open`."""
    return GlooTransport(setup.group, setup.settings, setup.early_bytes, setup.failed)
