"""Connection: frames over one TCP socket, without blocking and without a thread.

Sending takes frames when the kernel has room, and hands over the messages' own memory. The kernel
keeps a bounded number of unsent bytes, and on a slow link of all, so what is more urgent overtakes
soon. It is offered several frames in one call, which a fast connection drains meanwhile; those that
it does not begin go back, so that a slow one holds no more than if they came one by one. Receiving
reads headers and small frames through a staging buffer, one call for many, and the rest of large
ones straight to where they belong, with the next header behind; the kernel wakes the reader for the
next large piece, not for every packet.

The end of the peer's stream between two frames says that it has left; where streams say goodbye,
only after that. Otherwise, and within a frame, or if the connection was reset, the peer is lost.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from compressa.errors import CompressaError, PeerLost
from compressa.transports.frames import FRAME_HEADER_BYTES, NO_DATA, Frame, Kind, read_frame
from compressa.transports.inbox import Inbox
from compressa.transports.outbox import Leaving, OutgoingFrame, Source
from compressa.transports.reactor import READ, WRITE, Reactor
from compressa.transports.settings import Settings, tune

_STAGING_BYTES = 1 << 16
_PIECE_BYTES = 1 << 17  # a wake-up and a read cost as much as some 10 kB
_READ_BYTES = 1 << 20  # at a time; then the other peers are read from
_MOST_OFFERED = 16  # frames in one call


class Connection:
    """Both directions between this rank and one peer; used by the reactor's thread alone.

    Args:
        link: Connected stream socket; closed with this object.
        peer: Rank at the other end.
        settings: Sizes and times; a frame of another epoch is refused.
        source: What is sent. The own stream ends when that is over.
        inbox: Where messages go.
        failed: Called with a `PeerLost`, after which the socket is closed; or with the
            `PayloadError` of a frame, after which what comes is read and ignored.
        on_peer_closed: Called once, with the peer, when it has ended its stream in order.
        number: Which of the connections between the two it is.

    Attributes:
        sent_bytes: What the kernel has taken, headers included.
        heard_s: When something came last, on `time.monotonic`.
    """

    def __init__(
        self,
        link: socket.socket,
        peer: int,
        settings: Settings,
        source: Source,
        inbox: Inbox,
        failed: Callable[[CompressaError], None],
        on_peer_closed: Callable[[int], None],
        number: int = 0,
    ) -> None:
        self._link = link
        self._sealing = settings.keys.to(peer, number)
        self._opening = settings.keys.coming_from(peer, number)
        self._peer = peer
        self._settings = settings
        self._source = source
        self._inbox = inbox
        self._failed = failed
        self._on_peer_closed = on_peer_closed
        self._leaving: list[Leaving] = []  # the frame that has begun, if any
        self._handed: deque[Callable[[], None]] = deque()  # to be told that a frame has left
        self._offered = 1  # frames in the next call
        self._full = False  # until the kernel has room again
        self._writing = self._reading = True
        self._deaf = False
        self._parted = not settings.alive  # whether the end of the peer's stream is in order
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._staged = 0
        self._frame: Frame | None = None
        self._received = 0  # bytes of the frame's data
        self._piece = 1
        self._reactor: Reactor | None = None
        self.sent_bytes = 0
        self.heard_s = time.monotonic()
        tune(link, settings)

    @property
    def open(self) -> bool:
        """Whether either direction may still carry something."""
        return self._writing or self._reading

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor watch the socket from now on: before it runs, or on its thread."""
        self._reactor = reactor
        self._watch()

    def flush(self) -> None:
        """Hand frames to the kernel until it takes no more, and end the stream after the last.

        Never blocks, and raises nothing: a broken socket is told to `failed`. When the kernel has
        room again, the reactor calls this.
        """
        try:
            more = True
            while more and self._writing and not self._full:
                frames = self._take()
                more = len(frames) == self._offered
                if len(frames) == 1 and not self._leaving:
                    self._push_one(frames[0])
                elif frames or self._leaving:
                    self._push(frames)
            if self._source.ending and self._writing and not (more or self._leaving):
                self._end_if_over()
        except OSError as error:
            self._lose(error)

    def drop(self) -> None:
        """Let go of lent memory and take nothing more, but send the rest of the frame under way.

        Of that a copy is kept. No `sent` of a message is called any more.
        """
        self.ignore()
        self._handed.clear()
        for frame in self._leaving:
            frame.sent = None
            frame.parts = [memoryview(bytes(part)) for part in frame.parts]

    def ignore(self) -> None:
        """Take nothing that comes any more; read it, so that the peer can end its stream."""
        self._deaf, self._staged = True, 0

    def close(self) -> None:
        """End both directions now, without a goodbye; may be called again.

        What was not handed to the kernel is not sent, and no callback is called any more.
        """
        self._writing = self._reading = False
        self._leaving.clear()
        self._handed.clear()
        if self._link.fileno() < 0:
            return
        self._watch()
        # A process that was forked meanwhile may have the socket, too, and would keep it open.
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    # Sending

    def _take(self) -> list[OutgoingFrame]:
        """Take as many frames as the kernel may begin."""
        frames: list[OutgoingFrame] = []
        while len(frames) < self._offered and (item := self._source.take()) is not None:
            frames.append(item)
        return frames

    def _push_one(self, item: OutgoingFrame) -> None:
        """Offer a frame by itself, as most short messages are."""
        header = item.frame.pack(item.data, self._sealing)
        try:
            taken = self._link.sendmsg((header, item.data))
        except BlockingIOError:
            taken = 0
        self.sent_bytes += taken
        if taken == FRAME_HEADER_BYTES + item.frame.data_bytes:
            self._offered = 3
            item.message.handed_over()
        else:
            self._stop([Leaving(item, header)], taken, [item])

    def _push(self, frames: list[OutgoingFrame]) -> None:
        """Offer the frame that has begun and others behind it; give back what does not begin."""
        queue = [*self._leaving, *map(self._sealed, frames)]
        parts = [part for frame in queue for part in frame.parts]
        try:
            taken = self._link.sendmsg(parts)
        except BlockingIOError:
            taken = 0
        self.sent_bytes += taken
        if taken == sum(map(len, parts)):
            self._leaving, whole = [], len(queue)
            self._offered = min(2 * len(frames) + 1, _MOST_OFFERED)
        else:
            whole = self._stop(queue, taken, frames)
        for frame in queue[:whole]:
            if frame.sent is not None:
                self._handed.append(frame.sent)
        while self._handed:
            self._handed.popleft()()

    def _sealed(self, item: OutgoingFrame) -> Leaving:
        return Leaving(item, item.frame.pack(item.data, self._sealing))

    def _stop(self, queue: list[Leaving], taken: int, frames: list[OutgoingFrame]) -> int:
        """Wait for room; return how many frames have left as a whole."""
        old, whole = len(queue) - len(frames), 0
        while taken >= queue[whole].left_bytes:
            taken -= queue[whole].left_bytes
            whole += 1
        if taken:
            queue[whole].advance(taken)
        begun = max(whole + (taken > 0), old)
        self._leaving = queue[whole:begun]
        self._source.give_back(frames[begun - old :])
        self._sealing.take_back(len(frames) - (begun - old))
        self._offered = min(2 * (begun - old) + 1, _MOST_OFFERED)
        self._full = True
        self._watch()
        return whole

    def _end_if_over(self) -> None:
        if self._source.over:
            self._writing = False
            self._link.shutdown(socket.SHUT_WR)

    # Receiving

    def _ready(self, events: int) -> None:
        if events & WRITE and self._writing:
            self._full = False
            self.flush()
            self._watch()
        if events & READ and self._reading:
            try:
                self._read()
            except OSError as error:
                self._lose(error)
            except CompressaError as error:
                # Where the next frame would begin cannot be known any more.
                self.ignore()
                self._failed(error)

    def _read(self) -> None:
        """Take what has come, as much as may be read at a time."""
        self.heard_s, allowed = time.monotonic(), _READ_BYTES
        while allowed > 0 and self._reading:
            direct = self._frame is not None and not self._staged and not self._deaf
            try:
                count, room = self._read_on() if direct else self._read_staged()
            except BlockingIOError:
                break
            if not count:
                self._end()
                return
            allowed -= count
            if not self._deaf:
                self._sort()
            if count < room:
                break
        if self._frame is not None or self._piece > 1:
            self._wake_for_piece()

    def _read_staged(self) -> tuple[int, int]:
        """Read into the staging buffer; return how much came, and for how much there was room."""
        space = self._staging[self._staged :]
        count = self._link.recv_into(space)
        if not self._deaf:
            self._staged += count
        return count, len(space)

    def _read_on(self) -> tuple[int, int]:
        """Read the rest of a frame into place, and what comes behind it into the staging buffer."""
        rest, behind = self._spaces()
        count = self._link.recvmsg_into([rest, behind])[0]
        filled = min(count, len(rest))
        self._staged = count - filled
        if filled:
            self._fill(filled)
        return count, len(rest) + len(behind)

    def _spaces(self) -> tuple[memoryview, memoryview]:
        """Where the rest of the frame's data belongs, and room for what comes behind it.

        Where the message goes on, that is a header, whose data is to be read into place as well.
        """
        frame = self._frame
        assert frame is not None
        behind = FRAME_HEADER_BYTES if frame.goes_on else _STAGING_BYTES
        return self._destination(), self._staging[:behind]

    def _sort(self) -> None:
        """Bring the staged bytes to where they belong."""
        staging, begin, end = self._staging, 0, self._staged
        while begin < end:
            if self._frame is not None:
                begin += self._fill_from(staging[begin:end])
            elif begin + FRAME_HEADER_BYTES <= end:
                begin += self._begin_frame(staging[begin:end])
            else:
                break
        self._staged = end - begin
        if self._staged:
            staging[: end - begin] = bytes(staging[begin:end])

    def _begin_frame(self, staged: memoryview) -> int:
        """Read a header, with the data behind it if all of that is here; return how much it was."""
        settings = self._settings
        way = self._inbox.way
        frame = read_frame(staged, settings.epoch, settings.chunk_bytes, way)
        end = FRAME_HEADER_BYTES + frame.data_bytes
        if frame.kind is not Kind.DATA:
            frame.verify(NO_DATA, way, self._opening)
            self._parted |= frame.kind is Kind.GOODBYE
            return FRAME_HEADER_BYTES
        if end <= len(staged):
            data = staged[FRAME_HEADER_BYTES:end]
            frame.verify(data, way, self._opening)
            self._inbox.accept(frame, data)
            return end
        self._inbox.begin(frame)
        self._frame, self._received = frame, 0
        return FRAME_HEADER_BYTES

    def _fill_from(self, staged: memoryview) -> int:
        """Copy what has come of the frame's data; return how much it was."""
        room = self._destination()
        count = min(len(room), len(staged))
        room[:count] = staged[:count]
        self._fill(count)
        return count

    def _destination(self) -> memoryview:
        """Where the rest of the frame's data belongs."""
        assert self._frame is not None
        return self._inbox.room(self._frame)[self._received :]

    def _fill(self, count: int) -> None:
        """Note that so many bytes of the frame's data have come."""
        assert self._frame is not None
        self._received += count
        if self._received == self._frame.data_bytes:
            frame, self._frame = self._frame, None
            frame.verify(self._inbox.room(frame), self._inbox.way, self._opening)
            self._inbox.filled(frame)

    def _wake_for_piece(self) -> None:
        """Have the kernel report the next piece whole.

        A frame with more of its message behind it is of no use before that, whose header surely
        comes here if there is no other connection: one wake-up takes both.
        """
        piece, frame = 1, self._frame
        if frame is not None and not self._deaf:
            rest = frame.data_bytes - self._received
            header = FRAME_HEADER_BYTES if frame.goes_on and self._inbox.in_order else 0
            piece = min(rest + header, _PIECE_BYTES)
        if piece != self._piece:
            self._piece = piece
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, piece)

    def _end(self) -> None:
        """The peer's stream has ended."""
        cut = self._frame is not None or self._staged
        if cut and not self._deaf:
            self._lose(ConnectionError("in the middle of a frame"))
            return
        if self._writing and not (self._parted or self._deaf):
            self._lose(ConnectionError())
            return
        self._reading = False
        self._watch()
        self._on_peer_closed(self._peer)

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
