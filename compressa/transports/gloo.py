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
from compressa.errors import CompressaError, PeerLost, TransportError
from compressa.transports.base import Done, Key, Traffic
from compressa.transports.inbox import Inbox
from compressa.transports.streams import Receiver, Sender, StreamSettings, silent
from compressa.transports.tagged import TaggedTransport


class GlooTransport(TaggedTransport):
    """A full mesh of streams between the ranks of a Gloo process group.

    Args:
        group: A Gloo process group of its own.
        settings: Sizes and times of the streams.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        settings: StreamSettings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
    ) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self.epoch = settings.epoch
        self._group = group
        self._settings = settings
        self._silence_s = settings.silence_s
        self._failed = failed
        self._lock = threading.Lock()
        self._dead = False
        self._gone: set[int] = set()
        self._summed_bytes = 0
        others = [peer for peer in range(self.size) if peer != self.rank]
        self._inboxes = {peer: Inbox(peer, early_bytes) for peer in others}
        self._senders = {
            peer: Sender(group, peer, settings, self._stream_failed, self._beat) for peer in others
        }
        self._receivers = {
            peer: Receiver(
                group, peer, settings, self._inboxes[peer], self._stream_failed, self._leave
            )
            for peer in others
        }
        for thread in self._threads():
            thread.start()

    @property
    def sums(self) -> bool:
        """Gloo has an all-reduce, which nobody can pace."""
        return self._settings.pacer.rate_bits_per_s is None

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, place: int, sent: Callable[[], None]
    ) -> None:
        """Queue for the peer's sender."""
        self._senders[peer].send(key, buffer, (key.step, place), sent)

    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Ask the peer's inbox."""
        inbox = self._inboxes[peer]
        inbox.expect(key, buffer, exact, arrived)
        # What it sent before it left may have been waiting here.
        if peer in self._gone and inbox.waits_for(key):
            self._report(has_left(peer))

    def listen(
        self, peer: int, key: Key, buffer: torch.Tensor, arrived: Callable[[torch.Tensor], None]
    ) -> None:
        """Take a message that may never come: a peer that leaves does not owe it."""
        self._inboxes[peer].expect(key, buffer, False, arrived, owed=False)

    @property
    def gone(self) -> frozenset[int]:
        """Peers that have said goodbye."""
        return frozenset(self._gone)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum with Gloo's own algorithm; the bytes are those of a ring."""
        tensor = operation.tensor
        size = tensor.numel() * tensor.element_size()
        self._summed_bytes += 2 * size * (self.size - 1) // self.size
        try:
            work = self._group.allreduce([tensor])
        except RuntimeError as error:
            done(_sum_failed(error))
            return
        work.get_future().add_done_callback(lambda future: done(_outcome(future)))

    def waits_for(self, peer: int, key: Key) -> bool:
        """Ask the peer's inbox."""
        return peer != self.rank and self._inboxes[peer].waits_for(key)

    @property
    def traffic(self) -> Traffic:
        """Frames, and what the backend's sums must have sent."""
        senders = self._senders.values()
        sent = sum(sender.sent_bytes for sender in senders)
        return Traffic(sent + self._summed_bytes, sum(sender.messages for sender in senders))

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; the peers' goodbyes end the receivers."""
        with self._lock:
            self._dead = True
        for receiver in self._receivers.values():
            receiver.deafen()
        for sender in self._senders.values():
            sender.close(drop=True)
        for inbox in self._inboxes.values():
            inbox.clear()

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone and wait for theirs."""
        for sender in self._senders.values():
            sender.close()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads():
            thread.join(max(0.0, end_s - time.monotonic()))

    def _threads(self) -> list[threading.Thread]:
        receiving = [receiver.thread for receiver in self._receivers.values()]
        return receiving + [sender.thread for sender in self._senders.values()]

    def _beat(self, peer: int) -> None:
        """Once a heartbeat at least: see that the peer's heart beats, too."""
        if time.monotonic() - self._receivers[peer].heard_s > self._silence_s:
            self._stream_failed(silent(peer, self._silence_s))

    def _stream_failed(self, error: CompressaError) -> None:
        """Report a failure, unless it is of a peer that had said goodbye."""
        if not (isinstance(error, PeerLost) and error.rank in self._gone):
            self._report(error)

    def _report(self, error: CompressaError) -> None:
        with self._lock:
            first = not self._dead
            self._dead = True
        if first:
            self._failed(error)

    def _leave(self, peer: int) -> None:
        """A peer said goodbye: answer in kind, and mind it if anything was due from it."""
        self._gone.add(peer)
        self._senders[peer].close()
        if self._inboxes[peer].asked:
            self._report(has_left(peer))


def has_left(peer: int) -> PeerLost:
    """Say in one sentence that a peer ended while it was still needed."""
    return PeerLost(peer, f"rank {peer} is lost: it has left the training")


def _outcome(future: torch.futures.Future[object]) -> dict[int, torch.Tensor] | CompressaError:
    try:
        future.value()
    except RuntimeError as error:
        return _sum_failed(error)
    return {}


def _sum_failed(error: RuntimeError) -> TransportError:
    text = str(error).strip().splitlines()
    return TransportError(f"the backend's all-reduce failed: {text[0] if text else 'unknown'}")
