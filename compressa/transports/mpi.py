"""MpiTransport: named messages over MPI's non-blocking calls, all made by one thread.

A message travels in frames, as over TCP: header and data in one piece of memory of the
transport's own, since MPI can not be made to let go of memory that it was lent. The receiver asks
MPI what has come (`Improbe`) before it receives, and so knows the length first. Frames are sent
synchronously (`Issend`): what is not matched yet is the credit. A sender has at most a window of
frames in flight to a peer, and picks the most urgent message anew for each.

MPI has no file descriptor to wait for. The reactor's timers ask, each time after an eighth of the
time for which nothing has happened, so that no wait becomes longer by more than that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.errors import CompressaError, PayloadError, PeerLost
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Done, Key, OnSent, Traffic, call_failed
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame
from compressa.transports.mesh import MeshTransport
from compressa.transports.mpi_process import left_behind, open_communicator, released
from compressa.transports.mpi_requests import Requests
from compressa.transports.mpi_sum import MpiSum
from compressa.transports.outbox import Outbox
from compressa.transports.reactor import Reactor
from compressa.transports.settings import Settings
from compressa.transports.setup import Setup

if TYPE_CHECKING:
    from mpi4py import MPI

_SOON_S = 1e-6
BUSY_S = 8e-3
"""Between two looks, while something is under way."""
_IDLE_S = 20e-3
_SHARE = 8
_MOST_POLLS = 16  # at a time; then the reactor's other clients have theirs


class _Slot:
    """Memory for a frame, under the names that torch, NumPy and MPI have for it."""

    def __init__(self, settings: Settings) -> None:
        self.tensor = settings.staging()
        self.array = self.tensor.numpy()
        self.memory = self.array.data


@dataclass(eq=False)
class _Arriving:
    """A frame that MPI is receiving."""

    slot: _Slot
    size: int
    complete: bool = False


class _Link:
    """State of the way to and from one peer."""

    def __init__(self, settings: Settings) -> None:
        self.outbox = Outbox(settings.epoch, settings.chunk_bytes)
        self.in_flight = 0
        self.paused = False  # until the pacer lets a frame go
        self.ending = False
        self.parted = False  # whether the goodbye is on its way
        self.deaf = False
        self.arriving: deque[_Arriving] = deque()


class MpiTransport(MeshTransport):
    """A full mesh of links between the ranks of a communicator.

    Frames are copied to memory of its own, at most `settings.window` of them for each peer, since
    nothing ends a send or a receive of MPI.

    Args:
        comm: A communicator of its own; freed with this object.
        settings: Sizes and times.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, when a peer is lost or sends nonsense.
        other_sum: Sums what MPI has no type for; None to offer no sums.
    """

    name = "mpi"

    def __init__(
        self,
        comm: MPI.Intracomm,
        settings: Settings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
        other_sum: BackendSum | None = None,
    ) -> None:
        super().__init__(comm.rank, comm.size, settings.epoch, early_bytes, failed)
        from mpi4py import MPI

        self._comm = comm
        self._settings = settings
        self._tag = settings.epoch % 32768  # the least that MPI allows
        self._requests = Requests(MPI)
        self._other_sum = other_sum
        self._sum = MpiSum(MPI, comm, self._requests)
        self._any, self._byte, self._status = MPI.ANY_SOURCE, MPI.BYTE, MPI.Status()
        self._error: type[RuntimeError] = MPI.Exception
        self._links = {peer: _Link(settings) for peer in self.inboxes}
        self._silent: set[int] = set()
        self._slots: list[_Slot] = []
        self._reactor: Reactor | None = None
        self._due_s = float("inf")
        self._moved_s = 0.0
        self._closed = False
        self._sent_bytes = 0

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor's timers ask MPI what has happened: before it runs, or on its thread."""
        self._reactor = reactor
        reactor.post(self._serve)

    @property
    def sums(self) -> bool:
        """Whether sums were asked for and nothing is paced: nobody can pace MPI's all-reduce."""
        return self._other_sum is not None and self._settings.pacer.rate_bits_per_s is None

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Start an exchange, and look soon whether something has come; see `Transport.exchange`."""
        super().exchange(key, exchange, priority, done)
        self._expect()

    def observe(self, on_sent: OnSent | None) -> None:
        """Have the outboxes report: when frames are handed to MPI, not when they leave the host."""
        for link in self._links.values():
            link.outbox.observe(on_sent)

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Hand MPI at once what the window has room for; see `TaggedTransport.send`."""
        self.must_be_here(peer)
        link = self._links[peer]
        if not link.ending:  # else nobody would take it
            link.outbox.push(key, buffer, (key.step, priority), sent)
            self._flush(peer)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum with MPI's own algorithm, or with Gloo's if MPI lacks the type.

        MPI sums copies of 4 MiB, which reach the tensor only if nothing has failed until then.
        `done` is called on the reactor's thread, or, of a sum by Gloo, from any.
        """
        if not self._sum.has(operation.tensor.dtype):
            assert self._other_sum is not None, "this transport offers no sums"
            self._other_sum.all_reduce(operation, done)
            return
        try:
            self._sum.all_reduce(operation, done)
        except self._error as error:
            done(call_failed("MPI's all-reduce", error))
        self._expect()

    @property
    def traffic(self) -> Traffic:
        """Frames with their headers, and what a ring must have sent for the sums."""
        summed = 0 if self._other_sum is None else self._other_sum.sent_bytes
        messages = sum(link.outbox.messages for link in self._links.values())
        return Traffic(self._sent_bytes + self._sum.sent_bytes + summed, messages)

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; nothing more is expected of a lost peer.

        This process leaves MPI without `MPI_Finalize` from now on, which waits for the dead.
        """
        if isinstance(error, PeerLost):
            self._silent.add(error.rank)
        left_behind()  # on all ranks, since all hear of it: MPI_Finalize waits for all
        super().fail(error)
        self._sum.fail()

    def end_link(self, peer: int, *, drop: bool) -> None:
        """Say goodbye after what is queued; `drop` forgets that, and hears nothing more."""
        link = self._links[peer]
        link.ending = True
        if drop:
            link.deaf = True
            link.outbox.clear()
        self._flush(peer)

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone, wait for theirs, and free the communicator.

        The reactor must not run any more. If MPI does not let go in time, the communicator stays
        and this process leaves without `MPI_Finalize`. May be called again.

        Args:
            timeout_s: Longest wait for goodbyes, of either side.
        """
        if self._closed:
            return
        end_s = time.monotonic() + timeout_s
        for peer in self._links:
            self.end_link(peer, drop=False)
        while self._owed and time.monotonic() < end_s:
            if not self._poll_all() and self._reactor is not None:
                self._reactor.poll(_SOON_S)  # for what the pacer holds back
        self._closed = True
        if self._other_sum is not None:
            self._other_sum.close()
        if self._requests:
            left_behind()  # MPI can not be made to let go: this communicator stays
        else:
            self._comm.Free()
        released()

    @property
    def _owed(self) -> bool:
        """Whether a goodbye, of either side, has not arrived."""
        for peer, link in self._links.items():
            if peer not in self._silent and not (
                link.parted and not link.in_flight and peer in self.gone
            ):
                return True
        return False

    # When to look

    def _expect(self) -> None:
        """Something has begun: look again soon."""
        self._moved_s = time.monotonic()
        self._look_in(0.0)

    def _look_in(self, pause_s: float) -> None:
        due_s = time.monotonic() + pause_s
        if self._reactor is not None and due_s < self._due_s:
            self._due_s = due_s
            self._reactor.call_at(due_s, partial(self._look, due_s))

    def _look(self, due_s: float) -> None:
        if due_s == self._due_s:  # else it was put off, or brought forward
            self._serve()

    def _serve(self) -> None:
        """Do what can be done, and settle when to look again."""
        if self._closed or self._reactor is None:
            return
        self._due_s = float("inf")
        if self._poll_all():
            self._moved_s = time.monotonic()
        quiet_s = time.monotonic() - self._moved_s
        most_s = BUSY_S if self._requests or self._pending else _IDLE_S
        self._look_in(min(max(quiet_s / _SHARE, _SOON_S), most_s))

    def _poll_all(self) -> bool:
        """Do what can be done now, of so many polls; return whether there was anything."""
        for rounds in range(_MOST_POLLS):
            while self._reported(self._begin_receive):
                pass
            if not self._reported(self._requests.poll):
                return rounds > 0
        return True

    def _reported(self, call: Callable[[], bool]) -> bool:
        try:
            return call()
        except self._error as error:
            self.report(call_failed("a call of MPI", error))
            return False

    # Sending

    def _flush(self, peer: int) -> None:
        """Hand over frames while the window has room, then the goodbye if it is due."""
        link = self._links[peer]
        while link.outbox and link.in_flight < self._settings.window and not link.paused:
            item = link.outbox.next_frame()
            slot = self._slot()
            item.frame.write(slot.array, item.data)
            size = FRAME_HEADER_BYTES + item.frame.data_bytes
            slot.memory[FRAME_HEADER_BYTES:size] = item.data
            self._send(peer, slot, size)
            item.message.handed_over()
        if link.ending and not (link.outbox or link.paused or link.parted):
            link.parted = True
            slot = self._slot()
            Frame(Kind.GOODBYE, self.epoch).write(slot.array)
            self._send(peer, slot, FRAME_HEADER_BYTES)

    def _send(self, peer: int, slot: _Slot, size: int) -> None:
        """Send a frame when its turn has come."""
        link = self._links[peer]
        link.in_flight += 1
        until_s = self._settings.pacer.reserve(size)
        if until_s is None or self._reactor is None:
            self._launch(peer, slot, size)
        else:
            link.paused = True
            self._reactor.call_at(until_s, partial(self._resume, peer, slot, size))

    def _resume(self, peer: int, slot: _Slot, size: int) -> None:
        self._links[peer].paused = False
        if not self._closed:
            self._launch(peer, slot, size)
            self._flush(peer)

    def _launch(self, peer: int, slot: _Slot, size: int) -> None:
        data = [slot.memory[:size], size, self._byte]
        try:
            request = self._comm.Issend(data, peer, self._tag)
        except self._error as error:
            self.report(call_failed("MPI's send", error))
            return
        self._sent_bytes += size
        self._requests.add(request, partial(self._taken, peer, slot))
        self._look_in(_SOON_S)

    def _taken(self, peer: int, slot: _Slot) -> None:
        """The peer has begun to receive a frame."""
        self._links[peer].in_flight -= 1
        self._slots.append(slot)
        self._flush(peer)

    def _slot(self) -> _Slot:
        return self._slots.pop() if self._slots else _Slot(self._settings)

    # Receiving

    def _begin_receive(self) -> bool:
        """Receive a frame if one has come, of which the length is known before."""
        message: Any = self._comm.Improbe(self._any, self._tag, self._status)
        if message is None:
            return False
        peer, size = self._status.source, self._status.Get_count(self._byte)
        link, most = self._links[peer], FRAME_HEADER_BYTES + self._settings.chunk_bytes
        if not FRAME_HEADER_BYTES <= size <= most:
            link.deaf = True
            self.report(
                PayloadError(
                    f"rank {peer} sends a frame of {size} bytes, where {FRAME_HEADER_BYTES} to "
                    f"{most} are allowed"
                )
            )
            left_behind()  # whoever sent it will wait for ever
            return True
        arriving = _Arriving(self._slot(), size)
        link.arriving.append(arriving)
        request = message.Irecv([arriving.slot.memory[:size], size, self._byte])
        self._requests.add(request, partial(self._received, peer, arriving))
        return True

    def _received(self, peer: int, arriving: _Arriving) -> None:
        """Take frames in the order in which they were sent; a short one may be here before."""
        arriving.complete = True
        waiting = self._links[peer].arriving
        while waiting and waiting[0].complete:
            first = waiting.popleft()
            try:
                self._understand(peer, first)
            except CompressaError as error:
                self._links[peer].deaf = True
                self.report(error)
            self._slots.append(first.slot)

    def _understand(self, peer: int, arrived: _Arriving) -> None:
        way = self.inboxes[peer].way
        frame = read_frame(arrived.slot.memory, self.epoch, self._settings.chunk_bytes, way)
        end = FRAME_HEADER_BYTES + frame.data_bytes
        if end != arrived.size:
            raise PayloadError(
                f"a frame from rank {peer} has {arrived.size} bytes and says {end} of itself"
            )
        if frame.kind is Kind.GOODBYE:
            self.leave(peer)
        elif frame.kind is Kind.DATA and not self._links[peer].deaf:
            data = arrived.slot.memory[FRAME_HEADER_BYTES:end]
            frame.verify(data, way)
            self.inboxes[peer].accept(frame, data)


def open_mpi(setup: Setup) -> MpiTransport:
    """Create a communicator of the ranks, and open links over it; see `Entry.open`.

    Raises:
        ConfigError: The ranks are not processes of one MPI job.
        Timeout: Some rank did not come.
    """
    epoch = setup.settings.epoch
    comm = open_communicator(setup.rank, setup.size, epoch, setup.all_gather, setup.start_s)
    backend_sum = BackendSum(setup.group)
    return MpiTransport(comm, setup.settings, setup.early_bytes, setup.failed, backend_sum)
