"""NcclTransport: exchanges between GPUs by NCCL, through a process group of torch's.

Every exchange is one group of sends and receives between the buffers themselves. It is launched in
an order that all ranks share, and waited for by a stream, not by a thread: an exchange is reported
at once, and the stream on which buffers are used waits for it when it lands, and not before, so
that what lands first does not wait for what was launched after it. A watchdog looks whether it
comes to an end, so that a lost rank is found by the deadline; then the communicator is aborted, and
the stream goes on.

A message whose length only its sender knows is padded to what its receiver has room for, and
begins with its length, which a watching thread reads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, PayloadError, Timeout, TransportError
from compressa.transports.base import Done, Key, Traffic, Transport, call_failed
from compressa.transports.reactor import Reactor
from compressa.transports.setup import Setup
from compressa.transports.watchdog import Watchdog
from compressa.transports.watcher import Watcher

_ABORT_S = 5.0
_WARM_UP_BYTES = 1 << 20  # small sums may go by other connections than large ones
_LENGTH_BYTES = 16  # so that what follows begins where vectors of four floats may


class _UnderWay(NamedTuple):
    """What was launched.

    Attributes:
        operation: As it was reported.
        buffers: Memory that NCCL uses.
        end: Comes after it.
    """

    operation: Operation
    buffers: Sequence[torch.Tensor]
    end: torch.cuda.Event


class NcclTransport(Transport):
    """Exchanges on a NCCL process group of its own.

    Made by all ranks together: the first calls connect them, which takes up to `deadline_s`.
    Buffers are on the stream's GPU; they are kept until their operation lands.

    Args:
        group: A NCCL process group that nobody else uses.
        epoch: Epoch of the transport.
        stream: On which buffers are made and used; current on the thread that drives this.
        deadline_s: How long a call may take, with what it gives to the GPU.
        failed: Called once, from any thread, when something takes longer, or the GPU fails.
        part: Waits, at most so many seconds, until every rank is about to close its transport.

    Raises:
        TransportError: The ranks did not meet.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        epoch: int,
        stream: torch.cuda.Stream,
        deadline_s: float,
        failed: Callable[[CompressaError], None],
        part: Callable[[float], None],
    ) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self.epoch = epoch
        self._group: dist.ProcessGroup | None = group
        self._stream = stream
        self._deadline_s = deadline_s
        self._failed = failed
        self._part = part
        self._watcher: Watcher | None = None
        # Waits for all that NCCL does, and does nothing else but to read lengths.
        self._ends = torch.cuda.Stream(stream.device)
        self._under_way: dict[int, _UnderWay] = {}
        self._sent_bytes = 0
        self._messages = 0
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None
        self._error: CompressaError | None = None
        self._watchdog = Watchdog(self._ends, deadline_s, self._expired, self._broke)
        self._meet()

    def _meet(self) -> None:
        """Have NCCL connect all ranks now, while every rank is there.

        It does so at the first call, and between two ranks at their first message, and takes its
        time.
        """
        try:
            with torch.cuda.stream(self._stream), self._calling("the first calls, which connect"):
                group = self._open_group()
                zeros = torch.zeros(_WARM_UP_BYTES // 4, device=self._stream.device)
                self._end_with([group.allreduce([zeros])])
                parts = zeros.view(torch.uint8)
                outgoing = {peer: parts[16 * peer : 16 * peer + 16] for peer in self._peers}
                incoming = {peer: torch.empty_like(part) for peer, part in outgoing.items()}
                self._send_and_receive(group, outgoing, incoming)
            if not self._watchdog.ended(self._deadline_s + _ABORT_S):
                raise TransportError("NCCL's first calls did not end")
        except TransportError as error:
            self.fail(error)
            raise self._error or error from None

    @property
    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def attach(self, reactor: Reactor) -> None:
        """Start the thread that watches for lengths, which reports on the reactor's thread."""
        self._watcher = Watcher(reactor.post, self._stream.device)

    def ordered(self, operation: Operation) -> bool:
        """Return True for exchanges as for sums: calls of the ranks match by their order alone."""
        return isinstance(operation, BackendAllReduce | Exchange)

    @property
    def sums(self) -> bool:
        """True: NCCL has an all-reduce."""
        return True

    @property
    def early(self) -> bool:
        """True: an operation is reported when it was launched, and must `land`."""
        return True

    def land(self, operation: Operation) -> None:
        """Have the stream wait for an operation that was reported, and let go of its buffers."""
        self._stream.wait_event(self._under_way.pop(id(operation)).end)

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Launch sends and receives in one group; see `Transport.exchange`.

        An exact exchange is reported in this call. Another is padded, and reported on the reactor's
        thread when the lengths are known; with a `PayloadError` if one can not be.
        """
        self._sent_bytes += exchange.outgoing_bytes
        self._messages += len(exchange.outgoing)
        name = f"stage {key.stage} of unit {key.unit}, step {key.step}"
        if exchange.exact:
            if self._launch(name, exchange, exchange.outgoing, exchange.incoming, done):
                done(dict(exchange.incoming))
            return
        outgoing = {p: _padded(b, exchange.capacity_bytes[p]) for p, b in exchange.outgoing.items()}
        landed = {p: _room(buffer.numel(), buffer) for p, buffer in exchange.incoming.items()}
        if self._launch(name, exchange, outgoing, landed, done):
            self._when_lengths_known(landed, exchange.incoming, done)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Launch NCCL's own sum, and report it in this call; see `Transport.all_reduce`."""
        tensor = operation.tensor
        size_bytes = tensor.numel() * tensor.element_size()
        self._sent_bytes += 2 * size_bytes * (self.size - 1) // self.size
        try:
            with self._calling("a sum of " + str(tensor.dtype)):
                self._end_with([self._open_group().allreduce([tensor])])
        except TransportError as error:
            done(error)
            return
        self._keep(operation, [tensor])
        done({})

    def missing(self, key: Key) -> Sequence[int]:
        """Return everyone else: a group call does not tell."""
        return self._peers

    @property
    def traffic(self) -> Traffic:
        """Bytes of messages, and what a ring must have sent for the sums."""
        return Traffic(self._sent_bytes, self._messages)

    def fail(self, error: CompressaError) -> None:
        """Abort the communicator: the stream, and whoever waits for it, goes on.

        Waits up to 5 s for the abort. What the stream goes on with is rubbish.
        """
        self._watchdog.close()
        self._abort()

    def close(self, timeout_s: float) -> None:
        """Let go of the communicator, once no rank needs it any more.

        What NCCL offers for that, all ranks must call together, and it has no deadline. An abort is
        this rank's own; but a peer may still read what this rank has sent. So all say when
        they have done their part, and one that does not is waited for no longer than this.

        Args:
            timeout_s: Longest wait for the GPU and the other ranks.

        Raises:
            TransportError: NCCL does not let go within 5 s more.
        """
        end_s = time.monotonic() + timeout_s
        if self._group is not None and self._watchdog.ended(timeout_s):
            self._part(max(0.0, end_s - time.monotonic()))
        self._watchdog.close()
        ended = self._abort()
        if self._watcher is not None:
            self._watcher.close(timeout_s)
        if not ended:
            raise TransportError(
                f"NCCL has not let go of its connections within {_ABORT_S:g} s; they stay until "
                "the process ends"
            )

    def _expired(self, what: str) -> None:
        """On the watchdog's thread: a call, or what it gave to the GPU, takes too long."""
        self._break(
            Timeout(
                (),
                f"rank {self.rank} waited {self._deadline_s:g} s for NCCL in {what}; a group call "
                "does not tell whom it waits for; that step's gradients are not to be trusted, so "
                "go on from an earlier checkpoint; if a rank may be late by more, raise "
                "exchange.deadline_s",
            )
        )

    def _broke(self, error: RuntimeError) -> None:
        """On the watchdog's thread: the GPU has reported an error."""
        self._break(call_failed("work on the GPU", error))

    def _break(self, error: CompressaError) -> None:
        # First the reason: what the abort ends will report itself as failed.
        self._error = error
        self._failed(error)
        self._abort()

    def _abort(self) -> bool:
        """Abort what is under way, once, whoever asks first; return whether it is over."""
        with self._lock:
            group, self._group = self._group, None
            if group is not None:
                # It waits for NCCL, which may be past helping.
                self._ending = threading.Thread(
                    target=_end, args=(group,), name="compressa-abort", daemon=True
                )
                self._ending.start()
            ending = self._ending
        assert ending is not None
        ending.join(_ABORT_S)
        return not ending.is_alive()

    def _open_group(self) -> dist.ProcessGroup:
        group = self._group
        if group is None:
            raise TransportError("the transport is closed")
        return group

    @contextlib.contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """Have the watchdog watch what is called; raise TransportError if NCCL fails."""
        try:
            with self._watchdog.watching(what):
                yield
        except RuntimeError as error:
            raise call_failed("NCCL", error) from error

    def _launch(
        self,
        name: str,
        exchange: Exchange,
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
        done: Done,
    ) -> bool:
        """Launch one group of sends and receives; return whether that went well."""
        try:
            with self._calling(name):
                self._send_and_receive(self._open_group(), outgoing, incoming)
        except TransportError as error:
            done(error)
            return False
        self._keep(exchange, [*outgoing.values(), *incoming.values()])
        return True

    def _send_and_receive(
        self,
        group: dist.ProcessGroup,
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
    ) -> None:
        # In the same order on both sides: a pair of ranks matches messages by their order.
        calls: list[tuple[Any, int, torch.Tensor]] = []
        calls += [(group.recv, *item) for item in incoming.items() if item[1].numel()]
        calls += [(group.send, *item) for item in outgoing.items() if item[1].numel()]
        if not calls:
            return
        group._start_coalescing(self._stream.device)
        for call, peer, buffer in calls:
            call([buffer], peer, 0)
        self._end_with([group._end_coalescing(self._stream.device)])

    def _end_with(self, works: Sequence[Any]) -> None:
        """Have what comes next on the stream of ends come after these, too."""
        with torch.cuda.stream(self._ends):
            for work in works:
                work.wait()  # the stream does

    def _keep(self, operation: Operation, buffers: Sequence[torch.Tensor]) -> None:
        """Note what is under way, until it lands.

        Its memory was allocated for a stream that does not wait for NCCL before, and may not be
        given to others on it: not even after a failure, when an abort may not have helped.
        """
        self._under_way[id(operation)] = _UnderWay(operation, buffers, self._ends.record_event())

    def _when_lengths_known(
        self, landed: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], done: Done
    ) -> None:
        """Bring what has landed to its buffers, as much as was sent."""
        assert self._watcher is not None, "attach comes first"
        heads = torch.empty(len(landed), dtype=torch.int64, pin_memory=True)
        event = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._ends):
            for head, room in zip(heads.split(1), landed.values(), strict=True):
                head.copy_(room[:8].view(torch.int64), non_blocking=True)
            event.record(self._ends)

        def bring() -> None:
            self._stream.wait_event(event)  # which it has reached
            received = {}
            for (peer, room), length in zip(landed.items(), heads.tolist(), strict=True):
                buffer = incoming[peer]
                if not 0 <= length <= buffer.numel():
                    done(_wrong_length(peer, length, buffer.numel()))
                    return
                received[peer] = buffer[:length]
                received[peer].copy_(room[_LENGTH_BYTES : _LENGTH_BYTES + length])
            done(received)

        self._watcher.when(event, bring)


def _end(group: dist.ProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):
        group.abort()


def _room(size_bytes: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(_LENGTH_BYTES + size_bytes)


def _padded(data: torch.Tensor, size_bytes: int) -> torch.Tensor:
    """A message as long as its receiver expects it, its length first."""
    room = _room(size_bytes, data)
    room[:8].view(torch.int64).fill_(data.numel())
    room[_LENGTH_BYTES : _LENGTH_BYTES + data.numel()].copy_(data)
    return room


def _wrong_length(peer: int, length: int, most: int) -> PayloadError:
    return PayloadError(f"rank {peer} says that it sent {length} bytes, of at most {most}")


def open_nccl(setup: Setup) -> NcclTransport:
    """Have NCCL connect all ranks; see `Entry.open`. The setup must have a stream.

    Raises:
        TransportError: The ranks did not meet within `deadline_s`.
    """
    assert setup.stream is not None, "the engine works on a GPU"
    return NcclTransport(
        setup.group, setup.settings.epoch, setup.stream, setup.deadline_s, setup.failed, setup.part
    )
