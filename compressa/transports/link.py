"""Link: all TCP connections between this rank and one peer, over which messages are striped.

Clouds limit each connection, and one window does not fill a fast and long line. So a message is
cut into frames, and each goes out on whichever connection has room: a slow one takes fewer. They
all take from one outbox, the most urgent message first.

The peer has left when all its streams have ended between two frames; it is lost, with all
connections, when one of them breaks.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence

import torch

from compressa.errors import CompressaError, PeerLost
from compressa.transports.base import Key, OnSent
from compressa.transports.connection import Connection
from compressa.transports.frames import FRAME_HEADER_BYTES, Kind
from compressa.transports.inbox import Inbox
from compressa.transports.outbox import Outbox, OutgoingFrame
from compressa.transports.reactor import Reactor
from compressa.transports.settings import Settings


class Link:
    """Both directions between this rank and one peer; used by the reactor's thread alone.

    Args:
        sockets: Connected stream sockets; closed with this object.
        peer: Rank at the other end.
        settings: Sizes and times.
        inbox: Where messages go; it must take frames in any order if there are several sockets.
        failed: Called when the peer is lost or sends nonsense; what comes after is ignored.
        on_peer_closed: Called once, when the peer has ended all its streams.

    Attributes:
        ending: Whether nothing is added to what waits.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        peer: int,
        settings: Settings,
        inbox: Inbox,
        failed: Callable[[CompressaError], None],
        on_peer_closed: Callable[[int], None],
    ) -> None:
        self._pacer = settings.pacer
        self._outbox = Outbox(settings.epoch, settings.chunk_bytes)
        self._held: deque[OutgoingFrame] = deque()  # the pacer has reserved their turns
        self._paused = False
        self._gathers = False
        self._alive = settings.alive
        self.ending = False
        self._ended = 0
        self._reactor: Reactor | None = None
        self._failed = failed
        self._on_peer_closed = on_peer_closed
        self.connections = [
            Connection(link, peer, settings, self, inbox, self._fail, self._end, number)
            for number, link in enumerate(sockets)
        ]

    @property
    def messages(self) -> int:
        """Messages that have been taken whole to be sent, signs of life and goodbyes included."""
        return self._outbox.messages

    @property
    def sent_bytes(self) -> int:
        """Bytes that the kernel has taken so far, with headers."""
        return sum(connection.sent_bytes for connection in self.connections)

    @property
    def open(self) -> bool:
        """Whether any direction of any connection may still carry something."""
        return any(connection.open for connection in self.connections)

    @property
    def heard_s(self) -> float:
        """When something came last, on `time.monotonic`."""
        return max(connection.heard_s for connection in self.connections)

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor watch the sockets and time what is paced; as `Connection.attach`."""
        self._reactor = reactor
        for connection in self.connections:
            connection.attach(reactor)

    def observe(self, on_sent: OnSent | None) -> None:
        """Have a function called with each message that has left; see `Transport.observe`."""
        self._outbox.observe(on_sent)

    def send(
        self, key: Key, buffer: torch.Tensor, priority: tuple[int, int], sent: Callable[[], None]
    ) -> None:
        """Queue a message, and hand over what the kernel takes now; never blocks.

        Args:
            key: Its name.
            buffer: uint8, contiguous, not empty, on the CPU; lent until `sent` is called.
            priority: The smallest goes first, and overtakes what has not begun to leave.
            sent: Called once, when the kernel has all of it; not if the link ends before.
        """
        self._outbox.push(key, buffer, priority, sent)
        if not self._gathers:
            self._flush()

    def gather(self) -> None:
        """Have `send` hand nothing to the kernel until `release`."""
        self._gathers = True

    def release(self) -> None:
        """Send what was kept, in as few calls as can be."""
        self._gathers = False
        self._flush()

    def beat(self) -> None:
        """Give the peer a sign of life, unless something else is on its way, or all was said."""
        if not (self._waiting or self.ending):
            self._outbox.push_sign(Kind.IDLE)
            self._flush()

    def finish(self, *, drop: bool = False) -> None:
        """End the own streams; may be called again, and never blocks.

        Args:
            drop: Forget what is queued, and end after the frames under way; nothing that comes is
                taken any more either. Else the streams end after all that is queued.
        """
        if drop:
            self._forget()
            for connection in self.connections:
                connection.drop()
        if self._alive and (drop or not self.ending):
            self._outbox.push_sign(Kind.GOODBYE)
        self.ending = True
        self._flush()

    def close(self) -> None:
        """End all directions now, without a goodbye; no `sent` is called any more."""
        self._forget()
        for connection in self.connections:
            connection.close()

    # What the connections ask for

    def take(self) -> OutgoingFrame | None:
        """Return the next frame, of the most urgent message, for a connection that has room.

        None if nothing is queued, or the pacer holds it back: then a timer flushes again.
        """
        if self._paused:
            return None
        if self._held:
            return self._held.popleft()
        if not self._outbox:
            return None
        item = self._outbox.next_frame()
        if self._pacer.rate_bits_per_s is None:
            return item
        if self._must_wait(FRAME_HEADER_BYTES + item.frame.data_bytes):
            self._held.append(item)
            return None
        return item

    def give_back(self, frames: Sequence[OutgoingFrame]) -> None:
        """Have frames again that the kernel did not take; what is more urgent may overtake them.

        Those that are paced keep their turns.
        """
        if self._held or self._pacer.rate_bits_per_s is not None:
            self._held.extendleft(reversed(frames))
            return
        for item in reversed(frames):
            self._outbox.give_back(item)

    @property
    def over(self) -> bool:
        """Whether all has been taken that will ever be sent."""
        return self.ending and not self._waiting

    @property
    def _waiting(self) -> bool:
        return bool(self._held or self._outbox)

    def _must_wait(self, size: int) -> bool:
        """Whether a frame must wait for its turn; a timer goes on with it then.

        Only one waits at a time, and what is more urgent comes right behind it.
        """
        until_s = self._pacer.reserve(size)
        if until_s is None or self._reactor is None:
            return False
        self._paused = True
        self._reactor.call_at(until_s, self._go_on)
        return True

    def _go_on(self) -> None:
        self._paused = False
        self._flush()

    def _flush(self) -> None:
        """Have every connection that has room take what waits."""
        for connection in self.connections:
            if self._held or self._outbox or self.ending:
                connection.flush()

    def _forget(self) -> None:
        self._held.clear()
        self._outbox.clear()

    # What the connections tell

    def _fail(self, error: CompressaError) -> None:
        """One connection has failed: messages can not be completed over the others either."""
        if isinstance(error, PeerLost):
            self.close()
        for connection in self.connections:
            connection.ignore()
        self._failed(error)

    def _end(self, peer: int) -> None:
        """The peer has ended one stream."""
        self._ended += 1
        if self._ended == len(self.connections):
            self._on_peer_closed(peer)
