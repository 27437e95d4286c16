"""NcclTransport: exchanges between GPUs by NCCL, through a process group of torch's.

Every exchange is a group call of the buffers themselves. It is launched in an order that all ranks
share, and waited for by a stream, not by a thread: an exchange is reported at once, and the stream
on which buffers are used waits for it when it lands, and not before, so that what lands first does
not wait for what was launched after it. A watchdog looks whether it comes to an end, so that a lost
rank is found by the deadline; then the communicator is aborted, and the stream goes on.

Equal messages to everybody that lie side by side go by NCCL's all-gather, sums by its all-reduce.
Before messages whose length only their sender knows go their lengths (`nccl_lengths`); such an
exchange is reported when they have come, and holds up what is launched after it until then.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, ConfigError, PayloadError, Timeout, TransportError
from compressa.transports.base import Done, Key, Received, Traffic, Transport, call_failed
from compressa.transports.gpu_threads import on
from compressa.transports.in_order import InOrder
from compressa.transports.nccl_group import NcclGroup
from compressa.transports.nccl_lengths import Lengths, Messages
from compressa.transports.reactor import Reactor
from compressa.transports.setup import Setup
from compressa.transports.watchdog import Watchdog
from compressa.transports.watcher import Watcher

_ABORT_S = 5.0
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_WARM_UP_BYTES = 1 << 20  # small sums may go by other connections than large ones


@dataclass(eq=False)
class _UnderWay:
    """What was launched.

    Attributes:
        operation: As it was reported.
        end: Comes after it.
        buffers: Memory that NCCL uses.
    """

    operation: Operation
    end: torch.cuda.Event
    buffers: list[torch.Tensor] = field(default_factory=list)


class NcclTransport(Transport):
    """Exchanges on a NCCL process group of its own.

    Made by all ranks together: the first calls connect them, which takes up to `deadline_s`.
    Buffers are on the stream's GPU; they are kept until their operation lands.

    Args:
        group: A NCCL process group that nobody else uses, unless it is shared.
        epoch: Epoch of the transport.
        stream: On which what was received is used. What is sent was made on the stream that is
            current when an exchange is launched.
        deadline_s: How long a call may take, with what it gives to the GPU.
        failed: Called once, from any thread, when something takes longer, or the GPU fails.
        part: Waits, at most so many seconds, until every rank is about to close its transport.
        shared: Whether the group is the model's, in one order with whose own calls, on one thread,
            all ranks launch exchanges. It outlives this, unless something fails: to abort it is all
            that then helps.

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
        *,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._group = NcclGroup(group, stream.device)
        self.rank, self.size, self.epoch = self._group.rank, self._group.size, epoch
        self._stream = stream
        self._deadline_s = deadline_s
        self._failed = failed
        self._part = part
        self._watcher: Watcher | None = None
        self._order = InOrder()
        # What is launched waits for what it needs, and not for what the stream was given since.
        self._departures = torch.cuda.Stream(stream.device)
        self._under_way: dict[int, _UnderWay] = {}
        self._sent_bytes = 0
        self._messages = 0
        self._error: CompressaError | None = None
        self._watchdog = Watchdog(self._group.ends, deadline_s, self._expired, self._broke)
        self._meet()

    def _meet(self) -> None:
        """Have NCCL connect all ranks now, while every rank is there.

        It does so at the first call of each kind, and between two ranks at their first message, and
        takes its time.
        """
        try:
            with on(self._stream):
                zeros = torch.zeros(_WARM_UP_BYTES // 4, device=self._stream.device)
                parts = torch.zeros((self.size, 16), dtype=torch.uint8, device=self._stream.device)
                outgoing = {peer: parts[peer] for peer in self._peers}
                incoming = {peer: torch.empty_like(part) for peer, part in outgoing.items()}
                ready = self._stream.record_event()
                with self._calling("the first calls, which connect", ready):
                    self._group.all_reduce(zeros)
                    self._group.exchange(outgoing, incoming)
                    self._group.all_gather(parts.view(-1))
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
        """Launch an exchange in its turn; see `Transport.exchange`.

        An exact one is reported when it is launched: in this call, unless another holds it up. One
        that is not exact is reported on the reactor's thread when its lengths have come; with a
        `PayloadError` if one can not be, and then nothing more is launched.
        """
        what = f"stage {key.stage} of unit {key.unit}, step {key.step}"
        if self._shared and not exchange.exact:
            raise ConfigError(
                f"{what}: its payloads vary in length, which the host waits for, and "
                'exchange.order is "stream"; use "own", or a compressor whose payloads do not'
            )
        if exchange.exact:
            self._add(what, exchange, self._exact_call(exchange), done, dict(exchange.incoming))
        else:
            lengths = Lengths(exchange, self.rank, self._stream.device)
            ready = self._reached()
            self._order.add(partial(self._begin, what, exchange, lengths, ready, done))

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Launch NCCL's own sum in its turn, and report it then; see `Transport.all_reduce`."""
        tensor = operation.tensor
        sent_bytes = 2 * tensor.nbytes * (self.size - 1) // self.size
        call = _Call(partial(self._group.all_reduce, tensor), [tensor], sent_bytes, 0)
        self._add("a sum of " + str(tensor.dtype), operation, call, done, {})

    def missing(self, key: Key) -> Sequence[int]:
        """Return everyone else: a group call does not tell."""
        return self._peers

    @property
    def traffic(self) -> Traffic:
        """Bytes of messages, with padding and lengths; for the rest what a ring must have sent."""
        return Traffic(self._sent_bytes, self._messages)

    def fail(self, error: CompressaError) -> None:
        """Abort the communicator: the stream, and whoever waits for it, goes on.

        Waits up to 5 s for the abort. What the stream goes on with is rubbish.
        """
        self._watchdog.close()
        self._group.abort(_ABORT_S)

    def close(self, timeout_s: float) -> None:
        """Let go of the communicator, once no rank needs it any more; not of one that is shared.

        What NCCL offers for that, all ranks must call together, and it has no deadline. An abort is
        this rank's own; but a peer may still read what this rank has sent. So all say when
        they have done their part, and one that does not is waited for no longer than this.

        Args:
            timeout_s: Longest wait for the GPU and the other ranks.

        Raises:
            TransportError: NCCL does not let go within 5 s more.
        """
        end_s = time.monotonic() + timeout_s
        if not self._group.closed and self._watchdog.ended(timeout_s):
            self._part(max(0.0, end_s - time.monotonic()))
        self._watchdog.close()
        ended = self._shared or self._group.abort(_ABORT_S)
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
        self._group.abort(_ABORT_S)

    @contextlib.contextmanager
    def _calling(self, what: str, ready: torch.cuda.Event) -> Iterator[None]:
        """Have the watchdog watch what is called; raise TransportError if NCCL fails."""
        try:
            with self._watchdog.watching(what, ready):
                yield
        except RuntimeError as error:
            raise call_failed("NCCL", error) from error

    def _reached(self) -> torch.cuda.Event:
        """Where the caller's current stream is, which has made what is sent."""
        made_on = torch.cuda.current_stream(self._stream.device_index)
        event: torch.cuda.Event = made_on.record_event()
        return event

    def _exact_call(self, exchange: Exchange) -> _Call:
        parts = exchange.gathered
        if parts is None:
            return self._call_of(Messages(exchange.outgoing, exchange.incoming))
        sent_bytes = parts.numel() * (self.size - 1) // self.size
        return _Call(partial(self._group.all_gather, parts), [parts], sent_bytes, self.size - 1)

    def _call_of(self, messages: Messages) -> _Call:
        buffers = [*messages.outgoing.values(), *messages.incoming.values()]
        sizes = [size for buffer in messages.outgoing.values() if (size := buffer.numel())]
        call = partial(self._group.exchange, *messages)
        return _Call(call, buffers, sum(sizes), len(sizes))

    def _add(
        self, what: str, operation: Operation, call: _Call, done: Done, result: Received
    ) -> None:
        """Launch a call in its turn, which is all of an operation."""
        ready = self._reached()

        def launch() -> bool:
            launched = self._launch(what, operation, call, ready, done)
            if launched:
                done(result)
            return launched

        self._order.add(launch)

    def _begin(
        self, what: str, exchange: Exchange, lengths: Lengths, ready: torch.cuda.Event, done: Done
    ) -> bool:
        """Launch what can be launched before the lengths are known; return whether that is all."""
        launch = partial(self._launch, what, exchange, ready=ready, done=done)
        if not launch(self._call_of(lengths.told)):
            return False
        with on(self._group.ends):
            known = lengths.fetch()

        def finish(received: Received) -> bool:
            launched = launch(self._call_of(lengths.rest(received)))
            if launched:
                done(received)
            return launched

        def go_on() -> None:
            try:
                received = lengths.received()
            except PayloadError as error:
                done(error)
                return
            if lengths.held:
                self._order.resume(partial(finish, received))
            else:
                done(received)

        if not launch(self._call_of(lengths.padded)):
            return False
        if not exchange.incoming:
            return finish({})
        assert self._watcher is not None, "attach comes first"
        self._watcher.when(known, go_on)
        return not lengths.held

    def _launch(
        self, what: str, operation: Operation, call: _Call, ready: torch.cuda.Event, done: Done
    ) -> bool:
        """Make a call, which the GPU begins when it has come to `ready`; return whether it could.

        Its memory was allocated for a stream that does not wait for NCCL before it lands, and may
        not be given to others on it: not even after a failure, when an abort may not have helped.
        """
        try:
            with on(self._departures), self._calling(what, ready):
                self._departures.wait_event(ready)
                call.launch()
        except TransportError as error:
            done(error)
            return False
        self._sent_bytes += call.sent_bytes
        self._messages += call.messages
        end = self._group.ends.record_event()
        kept = self._under_way.setdefault(id(operation), _UnderWay(operation, end))
        kept.end = end
        kept.buffers += call.buffers
        for buffer in call.buffers:  # when they are let go, the stream has been told to wait
            buffer.record_stream(self._stream)
        return True


@cache
def _warn_of_one_queue() -> None:
    """Say what can happen to two communicators whose kernels wait in one queue."""
    if os.environ.get(_QUEUES) == "1":
        text = (
            f"{_QUEUES} is 1: kernels of all streams wait in one queue. An exchange by NCCL and a "
            "collective of the model's own (SyncBatchNorm, find_unused_parameters, tensor "
            "parallelism), which ranks may launch in different orders, can then wait for each "
            'other for ever. Unset it, or set exchange.order = "stream", or exchange.transport = '
            '"tcp"; docs/guides/gpu.md says more'
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


class _Call(NamedTuple):
    """A group call, and what it is known for.

    Attributes:
        launch: Makes it.
        buffers: Memory that it uses.
        sent_bytes: What this rank sends, or must send by a ring.
        messages: In how many messages.
    """

    launch: Callable[[], None]
    buffers: Sequence[torch.Tensor]
    sent_bytes: int
    messages: int


def open_nccl(setup: Setup) -> NcclTransport:
    """Have NCCL connect all ranks; see `Entry.open`. The setup must have a stream.

    Warns, once, where the GPU has one queue for all streams.

    Raises:
        TransportError: The ranks did not meet within `deadline_s`.
    """
    assert setup.stream is not None, "the engine works on a GPU"
    if not setup.shared:
        _warn_of_one_queue()
    times = setup.deadline_s, setup.failed, setup.part
    return NcclTransport(
        setup.group, setup.settings.epoch, setup.stream, *times, shared=setup.shared
    )
