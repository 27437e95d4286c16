"""Connection: frames over one TCP socket, without blocking and without a thread.

Sending hands the kernel the memory of a message itself, the most urgent one first. The kernel keeps
a bounded number of unsent bytes, so what is more urgent overtakes soon. Receiving reads
headers and small frames through a staging buffer, one call for many, and the rest of large ones
straight into the memory where they belong; the kernel wakes the reader for the next large
piece, not for every packet.

The end of the peer's stream is its goodbye. Between two frames, it has left; within one, or if the
connection was reset, it is lost.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from compressa.errors import CompressaError, PeerLost
from compressa.pacing import Pacer
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame
from compressa.transports.inbox import Inbox
from compressa.transports.outbox import Outbox
from compressa.transports.reactor import READ, WRITE, Reactor

_STAGING_BYTES = 1 << 16
_PIECE_BYTES = 1 << 17  # a wake-up and a read cost as much as some 10 kB
_TURN_BYTES = 1 << 20  # then the other peers have their turn
_NOTSENT_LOWAT = 25  # Linux's TCP_NOTSENT_LOWAT, which Python 3.11 does not name


@dataclass(frozen=True)
class TcpSettings:
    """What all connections of a transport share.

    Attributes:
        epoch: Epoch of the transport.
        chunk_bytes: Most bytes of data in a frame.
        unsent_bytes: Most bytes that the kernel holds and has not sent.
        silence_s: Sent bytes that nobody confirms for so long end the connection.
        pacer: Holds back what is sent, to all peers together.
    """

    epoch: int
    chunk_bytes: int
    unsent_bytes: int
    silence_s: float
    pacer: Pacer = field(default_factory=lambda: Pacer(None))


class Connection:
    """Both directions between this rank and one peer; used by the reactor's thread alone.

    Args:
        link: Connected stream socket; closed with this object.
        peer: Rank at the other end.
        settings: Sizes and times.
        inbox: Where messages go.
        failed: Called once, when the peer is lost or sends nonsense.
        left: Called once, when the peer has ended its stream.
    """

    def __init__(
        self,
        link: socket.socket,
        peer: int,
        settings: TcpSettings,
        inbox: Inbox,
        failed: Callable[[CompressaError], None],
        left: Callable[[int], None],
    ) -> None:
        self._link = link
        self._peer = peer
        self._settings = settings
        self._inbox = inbox
        self._failed = failed
        self._left = left
        self._outbox = Outbox(settings.epoch, settings.chunk_bytes)
        self._parts: list[memoryview] = []
        self._sent: Callable[[], None] | None = None
        self._header = np.zeros(FRAME_HEADER_BYTES, dtype=np.uint8)
        self._paused = False  # until the pacer lets the frame go
        self._full = False  # until the kernel has room again
        self._ending = False
        self._writing = self._reading = True
        self._deaf = False
        self._staging = np.zeros(_STAGING_BYTES, dtype=np.uint8)
        self._staged = 0
        self._frame: Frame | None = None
        self._received = 0  # bytes of the frame's data
        self._piece = 1
        self._reactor: Reactor | None = None
        self.sent_bytes = 0
        _tune(link, settings)

    @property
    def messages(self) -> int:
        """Messages sent so far."""
        return self._outbox.messages

    @property
    def open(self) -> bool:
        """Whether either direction may still carry something."""
        return self._writing or self._reading

    def attach(self, reactor: Reactor) -> None:
        """Begin; `reactor` calls from now on."""
        self._reactor = reactor
        self._watch()

    def send(
        self, key: Key, buffer: torch.Tensor, place: tuple[int, int], sent: Callable[[], None]
    ) -> None:
        """Send a message; `sent` is called when `buffer` may be reused."""
        self._outbox.push(key, buffer, place, sent)
        self._flush()

    def finish(self, *, drop: bool = False) -> None:
        """End the own stream, after what is queued; `drop` ends it after the frame under way.

        With `drop`, nothing that comes is taken any more either.
        """
        self._ending = True
        if drop:
            self._drop()
        self._flush()

    def close(self) -> None:
        """End both directions now."""
        self._writing = self._reading = False
        self._parts.clear()
        self._outbox.clear()
        if self._link.fileno() < 0:
            return
        self._watch()
        # A process that was forked meanwhile may have the socket, too, and would keep it open.
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _drop(self) -> None:
        """Forget what is queued, and all memory that was lent."""
        self._deaf, self._staged = True, 0
        self._sent = None
        self._outbox.clear()
        if self._paused:  # nothing of the frame has been sent
            self._paused = False
            self._parts.clear()
        self._parts = [memoryview(bytes(part)) for part in self._parts]

    # Sending

    def _flush(self) -> None:
        """Hand frames to the kernel until it takes no more."""
        try:
            while self._writing and not (self._paused or self._full) and self._begin():
                self._push()
        except OSError as error:
            self._lose(error)

    def _begin(self) -> bool:
        """Have a frame to push; return whether there is one, to be pushed now."""
        if self._parts:
            return True
        if not self._outbox:
            if self._ending:
                self._writing = False
                self._link.shutdown(socket.SHUT_WR)
            return False
        frame, data, self._sent = self._outbox.next_frame()
        frame.write(self._header)
        self._parts = [self._header.data, data]
        return not self._paced(FRAME_HEADER_BYTES + frame.data_bytes)

    def _paced(self, size: int) -> bool:
        """Whether a frame must wait for its turn; a timer goes on with it then."""
        until_s = self._settings.pacer.reserve(size)
        if until_s is None or self._reactor is None:
            return False
        self._paused = True
        self._reactor.call_at(until_s, self._go_on)
        return True

    def _go_on(self) -> None:
        self._paused = False
        self._flush()

    def _push(self) -> None:
        """Push as much of the frame as the kernel takes."""
        try:
            taken = self._link.sendmsg(self._parts)
        except BlockingIOError:
            taken = 0
        self.sent_bytes += taken
        while self._parts and taken >= len(self._parts[0]):
            taken -= len(self._parts.pop(0))
        if self._parts:
            self._parts[0] = self._parts[0][taken:]
            self._full = True
            self._watch()
        elif self._sent is not None:
            sent, self._sent = self._sent, None
            sent()

    # Receiving

    def _ready(self, events: int) -> None:
        if events & WRITE and self._writing:
            self._full = False
            self._flush()
            self._watch()
        if events & READ and self._reading:
            try:
                self._read()
            except OSError as error:
                self._lose(error)
            except CompressaError as error:
                # Where the next frame would begin cannot be known any more.
                self._deaf, self._staged = True, 0
                self._failed(error)

    def _read(self) -> None:
        """Take what has come, within this peer's turn."""
        turn = _TURN_BYTES
        while turn > 0 and self._reading:
            direct = self._frame is not None and not self._staged and not self._deaf
            space = self._place() if direct else self._staging.data[self._staged :]
            try:
                count = self._link.recv_into(space)
            except BlockingIOError:
                break
            if not count:
                self._end()
                return
            turn -= count
            if direct:
                self._fill(count)
            elif not self._deaf:
                self._staged += count
                self._sort()
            if count < len(space):
                break
        self._wake_for_piece()

    def _sort(self) -> None:
        """Bring the staged bytes to where they belong."""
        begin, end = 0, self._staged
        while begin < end:
            if self._frame is None:
                if end - begin < FRAME_HEADER_BYTES:
                    break
                self._begin_frame(self._staging[begin:])
                begin += FRAME_HEADER_BYTES
            if self._frame is None:
                continue  # it was an idle one
            room = self._place()
            count = min(len(room), end - begin)
            room[:count] = self._staging.data[begin : begin + count]
            begin += count
            self._fill(count)
        self._staging[: end - begin] = self._staging[begin:end].copy()
        self._staged = end - begin

    def _begin_frame(self, header: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        settings = self._settings
        frame = read_frame(header, settings.epoch, settings.chunk_bytes, self._peer)
        if frame.kind is Kind.DATA:
            self._frame, self._received = frame, 0

    def _place(self) -> memoryview:
        """Where the rest of the frame's data belongs."""
        assert self._frame is not None
        return self._inbox.room(self._frame)[self._received :]

    def _fill(self, count: int) -> None:
        """Note that so many bytes of the frame's data have come."""
        assert self._frame is not None
        self._received += count
        if self._received == self._frame.data_bytes:
            frame, self._frame = self._frame, None
            self._inbox.filled(frame)

    def _wake_for_piece(self) -> None:
        """Have the kernel report the next piece whole."""
        piece = 1
        if self._frame is not None and not self._deaf:
            piece = min(self._frame.data_bytes - self._received, _PIECE_BYTES)
        if piece != self._piece:
            self._piece = piece
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, piece)

    def _end(self) -> None:
        """The peer's stream has ended."""
        if (self._frame is not None or self._staged) and not self._deaf:
            self._lose(ConnectionError("in the middle of a frame"))
            return
        self._reading = False
        self._watch()
        self._left(self._peer)

    def _lose(self, error: OSError) -> None:
        if not self.open:
            return
        self.close()
        why = f" ({error.strerror or error})" if str(error) else ""
        self._failed(
            PeerLost(self._peer, f"rank {self._peer} is lost: its connection was closed{why}")
        )

    def _watch(self) -> None:
        if self._reactor is not None and self._link.fileno() >= 0:
            wanted = READ * self._reading | WRITE * (self._writing and self._full)
            self._reactor.watch(self._link, wanted, self._ready)


def _tune(link: socket.socket, settings: TcpSettings) -> None:
    link.setblocking(False)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        patience_ms = round(settings.silence_s * 1000)
        link.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, settings.unsent_bytes)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
