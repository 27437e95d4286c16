"""Network: the loopback's ports and clock, and transports that carry sizes only."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from compressa.collectives import ring
from compressa.collectives.accumulator import Span
from compressa.collectives.base import BackendAllReduce, Compute, Operation
from compressa.collectives.dense import DenseValues
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.driver import ComputeDone, Driver
from compressa.engine.task import Task
from compressa.errors import CompressaError
from compressa.schedulers import Link
from compressa.simulation.phantoms import META, load_of
from compressa.transports.base import Done, Key, OnSent, Traffic
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback
from compressa.transports.tagged import TaggedTransport

_NEVER_BEFORE = 1 << 30  # units of a model are fewer
Arrived = Callable[[torch.Tensor], None]


class Network(Loopback):
    """Hosts with a port each, which send the most urgent message first, chunk by chunk.

    Args:
        hosts: How many, each with one rank.
        link: What connects them: `overhead_s` is what a chunk occupies a port besides its bytes;
            `chunk_bytes` must be given.
        reduce_s: What the backend takes to add up a byte.
        backend: Whether there is one.
        lowers: Whether sums are chosen as where they run as tables.
        alike: Whether all ranks do the same at the same time. Then one of them is enough: what it
            sends to another comes to it from the one to which it is that.

    Attributes:
        hosts: As given.
        sent_s: By rank, for how long its port was occupied by what it sent.
        received_s: By what it received.
        ends: Each rank's transport.
    """

    def __init__(
        self,
        hosts: int,
        link: Link,
        reduce_s: float,
        *,
        backend: bool,
        lowers: bool = False,
        alike: bool = False,
    ) -> None:
        ends = 1 if alike else hosts
        super().__init__(
            ends,
            latency_s=link.latency_s,
            message_s=link.overhead_s,
            bandwidth_bytes_per_s=link.bytes_per_s,
            chunk_bytes=link.chunk_bytes,
            credit_bytes=link.credit_bytes,
        )
        self.hosts = hosts
        self._alike = alike
        self._link = link
        self.sent_s = [0.0] * ends
        self.received_s = [0.0] * ends
        each = reduce_s, backend, lowers
        self.ends = [PhantomTransport(self, rank, *each) for rank in range(ends)]

    @property
    def busiest_s(self) -> float:
        """For how long the busiest direction of the busiest port was occupied."""
        return max(*self.sent_s, *self.received_s)

    def carry(
        self,
        sender: int,
        receiver: int,
        size_bytes: int,
        on_sent: Callable[[], None],
        arrive: Callable[[], None],
    ) -> None:
        """As its base, and note for how long it occupies the ports."""
        receiver = 0 if self._alike else receiver
        seconds = self._link.wire_s(size_bytes)
        self.sent_s[sender] += seconds
        self.received_s[receiver] += seconds
        super().carry(sender, receiver, size_bytes, on_sent, arrive)

    def deliver(self, sender: int, receiver: int, key: Key, size_bytes: int) -> None:
        """Hand a message over that has arrived.

        Args:
            sender: Its rank.
            receiver: The rank that it is for.
            key: Its name.
            size_bytes: Of the payload.
        """
        if not self._alike:
            self.ends[receiver].deliver(sender, key, size_bytes)
            return
        (end,) = self.ends
        # Ranks are shifted against each other, or, where pairs swap, reflected.
        shifted = -receiver % self.hosts
        end.deliver(shifted if end.expects(shifted, key) else receiver, key, size_bytes)


class PhantomTransport(TaggedTransport):
    """One rank's end of a network.

    Args:
        network: The network.
        rank: The rank.
        reduce_s: What the backend takes to add up a byte.
        backend: Whether there is one.
        lowers: Whether sums are chosen as where they run as tables.
    """

    def __init__(
        self, network: Network, rank: int, reduce_s: float, backend: bool, lowers: bool
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = network.hosts
        self.epoch = 0
        self._network = network
        self._port = network.port(rank)
        self._backend = _Backend(self, network, reduce_s) if backend else None
        self._lowers = lowers
        self._on_sent: OnSent | None = None
        self._expected: dict[tuple[int, Key], tuple[torch.Tensor, Arrived]] = {}
        self._early: dict[tuple[int, Key], int] = {}

    @property
    def sums(self) -> bool:
        """Whether there is a backend."""
        return self._backend is not None

    @property
    def lowers(self) -> bool:
        """As is said; what is chosen goes hop by hop here, which takes as many."""
        return self._lowers

    @property
    def traffic(self) -> Traffic:
        """It is the network that counts."""
        return Traffic(0, 0)

    def observe(self, on_sent: OnSent | None) -> None:
        """Have a function called with each message that has left, on the network's clock."""
        self._on_sent = on_sent

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Have the port carry as many bytes; see `TaggedTransport.send`."""
        size, began = buffer.numel(), None
        if self._on_sent is not None:
            began, sent = _noted(self._network, partial(self._on_sent, key), sent)
        arrive = partial(self._network.deliver, self.rank, peer, key, size)
        if self._port is None:
            self._network.carry(self.rank, peer, size + FRAME_HEADER_BYTES, sent, arrive)
        else:
            self._port.send(peer, size, (key.step, priority), sent, arrive, began)

    def expects(self, sender: int, key: Key) -> bool:
        """Return whether a message is waited for.

        Args:
            sender: The rank that it is from.
            key: Its name.
        """
        return (sender, key) in self._expected

    def deliver(self, sender: int, key: Key, size_bytes: int) -> None:
        """Take a message that has arrived, whether it is waited for by now or not.

        Args:
            sender: The rank that it is from.
            key: Its name.
            size_bytes: Of the payload.
        """
        expected = self._expected.pop((sender, key), None)
        if expected is None:
            self._early[sender, key] = size_bytes
        else:
            buffer, arrived = expected
            arrived(buffer)

    def receive(
        self, peer: int, key: Key, buffer: torch.Tensor, exact: bool, arrived: Arrived
    ) -> None:
        """Expect a message, which may be there; see `TaggedTransport.receive`."""
        if self._early.pop((peer, key), None) is None:
            self._expected[peer, key] = buffer, arrived
        else:
            arrived(buffer)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum as backends do: by a ring of their own."""
        assert self._backend is not None, "sums are left to a backend only where there is one"
        self._backend.all_reduce(operation, done)

    def fail(self, error: CompressaError) -> None:
        """Nothing is lost in a simulation."""
        raise error

    def close(self, timeout_s: float) -> None:
        """Nothing is held."""


def _noted(
    network: Network, on_sent: Callable[[float, float], None], sent: Callable[[], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what notes when a message begins to leave, and what tells it when it has left."""
    clock, first_s = network.clock, network.clock.now_s

    def began() -> None:
        nonlocal first_s
        first_s = clock.now_s

    def gone() -> None:
        on_sent(first_s, clock.now_s)
        sent()

    return began, gone


class _Backend:
    """A backend's own sums, which all ranks launch in the same order."""

    def __init__(self, transport: PhantomTransport, network: Network, reduce_s: float) -> None:
        self._clock = network.clock
        self._reduce_s = reduce_s
        self._group = RankGroup.everyone(transport.rank, transport.size)
        self._number = _NEVER_BEFORE
        self._received: dict[Task, int] = {}
        self._driver = Driver(
            transport, self._compute, partial(self._clock.at, 0.0), self._now_s, math.inf
        )
        self._driver.observe(self._carried)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        self._number += 1
        values = operation.tensor
        program = ring.all_reduce(
            DenseValues(values), Span(0, values.numel()), self._group, Scratch(META)
        )
        self._driver.start(Task(self._number, "backend", 0, program, lambda error: done({})))

    def _now_s(self) -> float:
        return self._clock.now_s

    def _carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        self._received[task] = received_bytes(operation)

    def _compute(self, task: Task, operation: Compute, done: ComputeDone) -> None:
        load_bytes = load_of(operation, None, self._received.pop(task, 0))
        ended_s = self._clock.now_s + load_bytes * self._reduce_s
        self._clock.at(ended_s, lambda: done(None, None))


def received_bytes(operation: Operation) -> int:
    """Return how many bytes an operation receives at most; 0 if it is no `Exchange`."""
    incoming = getattr(operation, "incoming", {})
    return sum(buffer.numel() for buffer in incoming.values())
