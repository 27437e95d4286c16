"""Loopback: all ranks in one process and one thread, on a virtual clock.

Every rank has one port of a given bandwidth, each way. A message leaves when its sender's
port is free, arrives `latency_s` later, and occupies its receiver's port, as soon as that is
free, while its bytes come in. The latency of messages under way overlaps; `message_s` is what
each costs on both ports besides its bytes, the `a` of the usual cost formulas. Events at equal
times happen in the order in which they were made, so a run is repeatable bit for bit.

What goes wrong in networks can be had on purpose: ports that differ and change in time, messages
that are delayed, and ranks that are lost at a time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.errors import CompressaError, PeerLost, StateError
from compressa.transports.base import Done, Key, Traffic
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind
from compressa.transports.inbox import Inbox
from compressa.transports.loopback_port import Port
from compressa.transports.tagged import TaggedTransport

Bandwidth = float | Callable[[int, float], float]
"""Bytes per second of each port; or of a rank's port at a time: (rank, time_s) -> bytes/s."""

Delay = Callable[[int, int, float], float]
"""(sender, receiver, time at which a message leaves) -> seconds that it takes longer."""


@dataclass
class VirtualClock:
    """Time that passes only from event to event.

    Attributes:
        now_s: The time in seconds, from 0 on.
    """

    now_s: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        """Have an event happen.

        Args:
            time_s: When, in seconds of this clock; now if that has passed.
            event: Called by `run`; of those of one time, the one that was given first comes first.
        """
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._numbers), event))

    def run(self) -> None:
        """Call events in order until none is left; what they raise comes out of here."""
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event()


class Loopback:
    """A world of ranks that share a virtual clock; all in the thread that runs the clock.

    Args:
        size: Number of ranks.
        latency_s: Time from one port to another.
        message_s: Time that a message occupies a port besides its bytes.
        bandwidth_bytes_per_s: Of each port, each way; or a function of rank and time, whose answer
            holds for all of a message that begins then.
        delay: What messages take besides; they may overtake each other.
        clock: The clock; a new one if not given.
        chunk_bytes: Most bytes that leave in one piece; messages leave whole, in the order in which
            they were sent, if not given. Else the most urgent one goes first, chunk by chunk, each
            of which takes `message_s`.
        credit_bytes: Most bytes that have been handed over to a port and have not left, which
            nothing overtakes; one chunk if not given.

    Attributes:
        size: As given.
        clock: As given, or the new one.
        transports: By rank, its end of the world: a `LoopbackTransport`.

    Example:
        >>> slow_from_1_s = lambda rank, time_s: 1e6 if rank == 2 and time_s >= 1 else 1e9
        >>> loopback = Loopback(4, latency_s=1e-4, bandwidth_bytes_per_s=slow_from_1_s)
        >>> loopback.lose(3, at_s=2.0, silence_s=0.5)
    """

    def __init__(
        self,
        size: int,
        *,
        latency_s: float = 0.0,
        message_s: float = 0.0,
        bandwidth_bytes_per_s: Bandwidth = math.inf,
        delay: Delay | None = None,
        clock: VirtualClock | None = None,
        chunk_bytes: int | None = None,
        credit_bytes: int | None = None,
    ) -> None:
        self.size = size
        self.clock = clock or VirtualClock()
        self._chunk_bytes = chunk_bytes
        self._credit_bytes = credit_bytes or chunk_bytes or 0
        self._latency_s = latency_s
        self._message_s = message_s
        self._bandwidth = bandwidth_bytes_per_s
        self._delay = delay
        self._leaves_free_s = [0.0] * size
        self._enters_free_s = [0.0] * size
        self.transports = [LoopbackTransport(self, rank) for rank in range(size)]

    def lose(self, rank: int, *, at_s: float | None = None, silence_s: float = 0.0) -> None:
        """Cut a rank off: nothing reaches it or comes from it any more.

        The transports of the others fail with a `PeerLost` that names it; its own is not told.

        Args:
            rank: The rank.
            at_s: When, on the clock; now if not given.
            silence_s: How much later the others know it.
        """
        if at_s is not None:
            self.clock.at(at_s, lambda: self.lose(rank, silence_s=silence_s))
            return
        self.transports[rank].lost = True
        if silence_s:
            self.clock.at(self.clock.now_s + silence_s, lambda: self._tell(rank))
        else:
            self._tell(rank)

    def _tell(self, rank: int) -> None:
        for transport in self.transports:
            if not transport.lost:
                transport.fail(PeerLost(rank, f"rank {rank} is lost: its connection was closed"))

    def port(self, rank: int) -> Port | None:
        """Return a new way out for a rank, in chunks; None where messages leave whole."""
        if self._chunk_bytes is None:
            return None
        return Port(partial(self.carry, rank), self._chunk_bytes, self._credit_bytes)

    def carry(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        on_sent: Callable[[], None],
        arrive: Callable[[], None],
    ) -> None:
        """Occupy both ports for a message, behind all that they were given before.

        Args:
            sender: Rank.
            receiver: Another rank.
            size_bytes: Length, its header included.
            on_sent: Called at the time at which the last byte has left.
            arrive: Called at the time at which the last byte has come in.
        """
        leave_s = max(self.clock.now_s, self._leaves_free_s[sender])
        left_s = leave_s + self._occupied_s(sender, leave_s, size_bytes)
        self._leaves_free_s[sender] = left_s
        way_s = self._latency_s
        if self._delay is not None:
            way_s += self._delay(sender, receiver, leave_s)

        def enter() -> None:
            # Only now: a message that comes earlier, though sent later, must not wait for this.
            enter_s = max(self.clock.now_s, self._enters_free_s[receiver])
            entered_s = enter_s + self._occupied_s(receiver, enter_s, size_bytes)
            self._enters_free_s[receiver] = entered_s
            self.clock.at(max(entered_s, left_s + way_s), arrive)

        self.clock.at(leave_s + way_s, enter)
        self.clock.at(left_s, on_sent)

    def _occupied_s(self, rank: int, time_s: float, size_bytes: int) -> float:
        """How long a message that begins at a time occupies a rank's port."""
        bandwidth = self._bandwidth
        rate = bandwidth(rank, time_s) if callable(bandwidth) else bandwidth
        return self._message_s + size_bytes / rate


class _Inboxes(dict[int, Inbox]):
    """One for each peer that is heard from: of a thousand, a tree hears from ten."""

    def __missing__(self, peer: int) -> Inbox:
        self[peer] = Inbox(peer, 1 << 40)
        return self[peer]


class LoopbackTransport(TaggedTransport):
    """One rank's end of a `Loopback`; made by it.

    Attributes:
        lost: Whether the rank was cut off.
        failed: Called with each error that ends it; to be set by whoever drives it.
    """

    def __init__(self, world: Loopback, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.size = world.size
        self.epoch = 0
        self.lost = False
        self._error: CompressaError | None = None
        self.failed: Callable[[CompressaError], None] = lambda error: None
        self._world = world
        self._sent_bytes = 0
        self._messages = 0
        self._inboxes = _Inboxes()
        self._port = world.port(rank)

    @property
    def sums(self) -> bool:
        """False: there is no backend below."""
        return False

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Copy the message now, and deliver it when the ports have carried it.

        `sent` is called at the time at which its last byte has left; see `TaggedTransport.send`.
        """
        data = buffer.clone()
        size = data.numel()
        self._sent_bytes += size + FRAME_HEADER_BYTES
        self._messages += 1
        # A frame on a wire has room for 32 bits of the step; so has this one.
        key = key._replace(step=key.step & 0xFFFFFFFF)
        frame = Frame(Kind.DATA, self.epoch, key, size, 0, size)
        receiver = self._world.transports[peer]

        def arrive() -> None:
            if not (self.lost or receiver.lost):
                receiver.deliver(self.rank, frame, data)

        if self._port is None:
            self._world.carry(self.rank, peer, size + FRAME_HEADER_BYTES, sent, arrive)
        else:
            self._port.send(peer, size, (key.step, priority), sent, arrive)

    def deliver(self, sender: int, frame: Frame, data: torch.Tensor) -> None:
        """Take a message that has arrived; one that does not fit ends the transport.

        Args:
            sender: Rank that it is from.
            frame: Its header; the message is one frame.
            data: uint8, all of it.
        """
        try:
            self._inboxes[sender].accept(frame, data.numpy().data)
        except CompressaError as error:
            self.fail(error)

    def receive(
        self,
        peer: int,
        key: Key,
        buffer: torch.Tensor,
        exact: bool,
        arrived: Callable[[torch.Tensor], None],
    ) -> None:
        """Ask the peer's inbox; see `TaggedTransport.receive`."""
        self._inboxes[peer].expect(key, buffer, exact, arrived)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Not offered.

        Raises:
            StateError: Always.
        """
        raise StateError("the loopback has no all-reduce of its own; use compressa's")

    @property
    def traffic(self) -> Traffic:
        """Messages handed to the port, each with the bytes of one frame's header."""
        return Traffic(self._sent_bytes, self._messages)

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """As `TaggedTransport.exchange`, unless the transport is dead.

        Raises:
            CompressaError: It is; the error that ended it.
        """
        if self._error is not None:
            raise self._error
        super().exchange(key, exchange, priority, done)

    def fail(self, error: CompressaError) -> None:
        """Forget what is under way, and call `failed`; every later `exchange` raises that error."""
        self._error = self._error or error
        for inbox in self._inboxes.values():
            inbox.clear()
        self.failed(error)

    def close(self, timeout_s: float) -> None:
        """Do nothing, at once: nothing is held."""
