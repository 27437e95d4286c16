"""Streams over Gloo's point-to-point calls: one sender and one receiver thread per peer.

Gloo's send and receive objects can be waited for but not polled, and a receive does not tell
the length that came. So each direction between two ranks is a stream of frames under
consecutive tags: the receiver keeps a window of receives posted, each large enough for any
frame, and learns from a frame's header what it is. Frames arrive in the order in which they
were sent, so nobody has to agree on an order, and a peer that is late delays only itself.

Only the threads hold the process group, so that it can end when they have.

The window is also the credit: a sender has at most that many frames in flight, and picks the
most urgent message anew for each, so that an urgent one waits for one window at most.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from compressa.errors import CompressaError, PeerLost
from compressa.transports.base import Key, OnSent
from compressa.transports.frames import FRAME_HEADER_BYTES, NO_DATA, Frame, Kind, read_frame
from compressa.transports.inbox import Inbox
from compressa.transports.outbox import Outbox
from compressa.transports.settings import Settings
from compressa.transports.silence import silent

_TAG_BITS = 20


class Sender:
    """Sends messages to one peer, the most urgent first, a frame at a time."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        peer: int,
        settings: Settings,
        failed: Callable[[CompressaError], None],
    ) -> None:
        self._peer = peer
        self._settings = settings
        self._failed = failed
        self._outbox = Outbox(settings.epoch, settings.chunk_bytes)
        self._check = settings.keys.to(peer)
        self._sequence = itertools.count()
        self._wake = threading.Condition()
        self._closing = False
        self._slots = [settings.staging() for _ in range(settings.window)]
        self._works: list[dist.Work | None] = [None] * settings.window
        self.sent_bytes = 0
        self.thread = threading.Thread(
            target=self._run, args=(group,), name=f"compressa-send-{peer}"
        )

    @property
    def messages(self) -> int:
        """Messages sent so far."""
        return self._outbox.messages

    def send(
        self, key: Key, buffer: torch.Tensor, priority: tuple[int, int], sent: Callable[[], None]
    ) -> None:
        """Queue a message; `sent` is called when `buffer` may be reused."""
        with self._wake:
            self._outbox.push(key, buffer, priority, sent)
            self._wake.notify()

    def observe(self, on_sent: OnSent) -> None:
        """Have a function called with each message that has left; see `Transport.observe`."""
        self._outbox.observe(on_sent)

    def close(self, *, drop: bool = False) -> None:
        """Send what is queued (or drop it), then goodbye, then end."""
        with self._wake:
            self._closing = True
            if drop:
                self._outbox.clear()
            self._wake.notify()

    def _run(self, group: dist.ProcessGroup) -> None:
        try:
            for slot in itertools.cycle(range(self._settings.window)):
                self._wait_for(slot)
                if not self._send_next(group, slot):
                    break
            for slot in range(self._settings.window):
                self._wait_for(slot)
        except RuntimeError as error:
            self._failed(lost(self._peer, error, self._settings.silence_s))
        finally:
            self._works.clear()  # each keeps all connections of its group open

    def _wait_for(self, slot: int) -> None:
        work = self._works[slot]
        if work is not None:
            work.wait(_patience(self._settings))
            self._works[slot] = None

    def _send_next(self, group: dist.ProcessGroup, slot: int) -> bool:
        """Send one frame; return whether there may be more."""
        with self._wake:
            self._wake.wait_for(lambda: self._outbox or self._closing, self._settings.heartbeat_s)
            item = self._outbox.next_frame() if self._outbox else None
            # A program that ends without closing must not wait for this thread for ever.
            closing = self._closing or not threading.main_thread().is_alive()
        if item is None:
            kind = Kind.GOODBYE if closing else Kind.IDLE
            self._send_frame(group, slot, Frame(kind, self._settings.epoch), NO_DATA)
            return not closing
        self._send_frame(group, slot, item.frame, item.data)
        item.sent()
        return True

    def _send_frame(
        self, group: dist.ProcessGroup, slot: int, frame: Frame, data: memoryview
    ) -> None:
        staging = self._slots[slot]
        frame.write(staging.numpy(), data, self._check)
        end = FRAME_HEADER_BYTES + frame.data_bytes
        staging.numpy().data[FRAME_HEADER_BYTES:end] = data
        self._settings.pacer.wait(end)
        tag = _tag(self._settings, next(self._sequence))
        self._works[slot] = group.send([staging[:end]], self._peer, tag)
        self.sent_bytes += end


class Receiver:
    """Receives one peer's frames and hands them to its inbox."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        peer: int,
        settings: Settings,
        inbox: Inbox,
        failed: Callable[[CompressaError], None],
        on_peer_closed: Callable[[int], None],
    ) -> None:
        self._peer = peer
        self._settings = settings
        self._inbox = inbox
        self._check = settings.keys.coming_from(peer)
        self._failed = failed
        self._on_peer_closed = on_peer_closed
        self._sequence = itertools.count()
        self._deaf = False
        self.thread = threading.Thread(
            target=self._run, args=(group,), name=f"compressa-receive-{peer}"
        )

    def deafen(self) -> None:
        """Take no more data; the thread ends with the peer's goodbye, or its silence."""
        self._deaf = True

    def _run(self, group: dist.ProcessGroup) -> None:
        try:
            slots = [self._settings.staging() for _ in range(self._settings.window)]
            works = [self._post(group, staging) for staging in slots]
            for slot in itertools.cycle(range(self._settings.window)):
                works[slot].wait(_patience(self._settings))
                if not self._understand(slots[slot]):
                    return
                works[slot] = self._post(group, slots[slot])
        except RuntimeError as error:
            self._failed(lost(self._peer, error, self._settings.silence_s))

    def _understand(self, staging: torch.Tensor) -> bool:
        """Take a frame; after nonsense, read on without listening, so that the peer can end."""
        try:
            return self._take(staging)
        except CompressaError as error:
            self._deaf = True
            self._failed(error.with_traceback(None))  # whose frames would hold the group
            return True

    def _post(self, group: dist.ProcessGroup, staging: torch.Tensor) -> dist.Work:
        # Zeroed, so that a frame that is cut short cannot pass for the one before.
        staging[:FRAME_HEADER_BYTES].zero_()
        tag = _tag(self._settings, next(self._sequence))
        return group.recv([staging], self._peer, tag)

    def _take(self, staging: torch.Tensor) -> bool:
        """Handle one frame; return whether there may be more."""
        settings, memory, way = self._settings, staging.numpy().data, self._inbox.way
        frame = read_frame(memory, settings.epoch, settings.chunk_bytes, way)
        data = memory[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + frame.data_bytes]
        frame.verify(data, way, self._check)
        if frame.kind is Kind.GOODBYE:
            self._on_peer_closed(self._peer)
            return False
        if frame.kind is Kind.DATA and not self._deaf:
            self._inbox.accept(frame, data)
        return True


def _patience(settings: Settings) -> timedelta:
    """Longest wait inside Gloo: one that expires closes all pairs of the group.

    It must not expire before every rank knows whose silence it is.
    """
    return timedelta(seconds=settings.silence_s + 2 * settings.heartbeat_s + 1.0)


def _tag(settings: Settings, sequence: int) -> int:
    """Gloo's tag (31 bits) of the frame with this number."""
    return (settings.epoch & 0x7FF) << _TAG_BITS | (sequence & ((1 << _TAG_BITS) - 1))


def lost(peer: int, error: RuntimeError, silence_s: float) -> PeerLost:
    """Say in one sentence what a failed wait means."""
    if "imed out" in str(error):
        return silent(peer, silence_s)
    return PeerLost(peer, f"rank {peer} is lost: its connection was closed")
