"""Staged: exchanges between GPUs over a transport that carries memory of the host.

A buffer goes through three stages, a piece at a time: from the GPU to pinned memory, over the
network, and from pinned memory to the other GPU. While one piece is on the wire, the next one
comes off the GPU and the last one goes onto the other. Each direction has a stream of its own, so
that copies overlap with kernels, and events alone order them with the stream that makes and uses
the buffers: no thread that has other work waits for the GPU. Where the transport of the host has
fences, a piece that has left the GPU wakes the compiled code that sends it, and nothing waits for
Python that was launched before the GPU came to it.

A transport of the host may call back on a thread of its own, as Gloo's sums do, which knows of no
GPU: the first call of CUDA there would wake up GPU 0, whichever is the model's. So what has
arrived is looked at on the thread that drives the transport, which all else is called from.

Pinned memory is torch's: it gives a block out again only when the copies that use it are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import (
    Done,
    Key,
    OnCome,
    OnSent,
    Received,
    Traffic,
    Transport,
    call_failed,
)
from compressa.transports.gpu_threads import call_at, on
from compressa.transports.reactor import Reactor
from compressa.transports.watcher import Callback, Watcher

if TYPE_CHECKING:
    from compressa.transports.lowered.fence import Fence

PIECE_BYTES = 4 << 20
"""Some 0.2 ms on the bus: long beside what a copy costs, short beside a payload on the wire."""

When = Callable[[torch.cuda.Event, Callback | None], None]


class Staged(Transport):
    """A transport of the host with stages to and from a GPU.

    Args:
        inner: What carries pinned memory; owned from now on.
        stream: On which what was received is used.
        when: Calls back, on the thread that drives `inner`, when an event is reached, if there is
            anything to call; None for a `Watcher` on the reactor's thread.
        piece_bytes: Length of a piece.
    """

    def __init__(
        self,
        inner: Transport,
        stream: torch.cuda.Stream,
        when: When | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.rank, self.size, self.epoch = inner.rank, inner.size, inner.epoch
        self._inner = inner
        self._stream = stream
        self._out = torch.cuda.Stream(stream.device)
        self._in = torch.cuda.Stream(stream.device)
        self._when = when
        self._post: Callable[[Callback], None] = _at_once
        self._failure: CompressaError | None = None
        self._watcher: Watcher | None = None
        self._piece_bytes = piece_bytes
        self._parts: dict[Key, int] = {}
        self._on_device: set[int] = set()  # operations of which nothing has left it
        self._first: dict[int, Fence] = {}  # by operation: of its first piece

    def attach(self, reactor: Reactor) -> None:
        """Have the copies watched, what arrives posted, and the inner transport attached."""
        self._post = reactor.post
        if self._when is None:
            self._watcher = Watcher(reactor.post, self._stream.device)
            self._when = self._watcher.when
        self._inner.attach(reactor)

    def hear(self, on_come: OnCome | None) -> None:
        """Have the transport to the network report what has come there."""
        self._inner.hear(on_come)

    def observe(self, on_sent: OnSent | None) -> None:
        """Have the inner transport's pieces reported: their names differ in the part only."""
        self._inner.observe(on_sent)

    def ordered(self, operation: Operation) -> bool:
        """As the inner transport: what is launched in order leaves the GPU in order."""
        return self._inner.ordered(operation)

    @property
    def sums(self) -> bool:
        """Whether the inner transport offers sums."""
        return self._inner.sums

    def begun(self, operation: Operation) -> bool:
        """Return whether the first piece has left the GPU."""
        fence = self._first.get(id(operation))
        return id(operation) not in self._on_device if fence is None else fence.reached

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Carry out an exchange of buffers on the GPU, piece by piece; see `Transport.exchange`.

        It begins when the caller's current stream has come to what was given to it until now.
        `done` is called when the stream waits for the copies of all that was received, or with the
        first error.
        """
        pieces = self._pieces(exchange)
        self._parts[key] = len(pieces)

        def landed(failure: CompressaError | None, lengths: Mapping[int, int]) -> None:
            del self._parts[key]
            self._on_device.discard(id(exchange))
            self._first.pop(id(exchange), None)
            done(failure or {p: buffer[: lengths[p]] for p, buffer in exchange.incoming.items()})

        arrivals = _Arrivals(len(pieces), self._follow_copies, landed)
        self._order_copies()
        self._on_device.add(id(exchange))
        for part, piece in enumerate(pieces):
            incoming = {peer: _pinned_like(buffer) for peer, buffer in piece.incoming.items()}
            outgoing = self._copied_out(piece.outgoing)
            staged = Exchange(outgoing, incoming, piece.exact, piece.capacity_bytes)
            bring = self._posted(partial(self._bring, piece.incoming, arrivals))
            self._send(key._replace(part=part), staged, priority, bring, exchange)
        if id(exchange) in self._first:
            self._watch(None)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum piece by piece; the pieces are the same on all ranks, and so is their order.

        `done` as for `exchange`.
        """
        tensor = operation.tensor
        pieces = torch.split(tensor, self._piece_bytes // tensor.element_size())
        arrivals = _Arrivals(
            len(pieces), self._follow_copies, lambda failure, _: done(failure or {})
        )
        self._order_copies()
        self._on_device.add(id(operation))
        for piece in pieces:
            with on(self._out):
                staged = _pinned_like(piece).copy_(piece, non_blocking=True)
            bring = self._posted(partial(self._bring_sum, piece, staged, arrivals))
            add = partial(self._inner.all_reduce, BackendAllReduce(staged), bring)
            self._after_copies(operation, add)

    def missing(self, key: Key) -> Sequence[int]:
        """Return the ranks that any piece waits for, in ascending order."""
        parts = range(self._parts.get(key, 0))
        return sorted({peer for p in parts for peer in self._inner.missing(key._replace(part=p))})

    @property
    def traffic(self) -> Traffic:
        """What the inner transport has sent."""
        return self._inner.traffic

    def fail(self, error: CompressaError) -> None:
        """End what the inner transport has under way; what has arrived stays where it is."""
        self._failure = self._failure or error
        self._inner.fail(error)

    def close(self, timeout_s: float) -> None:
        """End the watching thread, then the inner transport.

        Args:
            timeout_s: Longest wait for either.

        Raises:
            TransportError: The inner transport does not end.
        """
        if self._watcher is not None:
            self._watcher.close(timeout_s)
        self._inner.close(timeout_s)

    def _pieces(self, exchange: Exchange) -> list[Exchange]:
        """Cut all messages at the same indices; what has no exact length stays whole.

        So does what has a position in an order of all ranks, who need not have equally many pieces.
        """
        if not exchange.exact or self._inner.ordered(exchange):
            return [exchange]
        buffers = [*exchange.outgoing.values(), *exchange.incoming.values()]
        longest = max((buffer.numel() for buffer in buffers), default=0)
        starts = range(0, max(longest, 1), self._piece_bytes)
        return [_piece(exchange, start, start + self._piece_bytes) for start in starts]

    def _order_copies(self) -> None:
        """Copies begin when what was given to the caller's current stream until now is done.

        Those back to the GPU do so, too: nothing is received before something could be sent.
        """
        self._out.wait_event(torch.cuda.current_stream(self._stream.device_index).record_event())

    def _copied_out(self, buffers: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Copy each buffer once, however many peers it goes to."""
        memory = {peer: (buffer.data_ptr(), buffer.numel()) for peer, buffer in buffers.items()}
        distinct = {memory[peer]: buffer for peer, buffer in buffers.items()}
        with on(self._out):
            copies = {
                address: _pinned_like(buffer).copy_(buffer, non_blocking=True)
                for address, buffer in distinct.items()
            }
        return {peer: copies[address] for peer, address in memory.items()}

    def _send(
        self, key: Key, staged: Exchange, priority: int, done: Done, operation: Operation
    ) -> None:
        """Have a piece exchanged when what is sent of it has left the GPU."""
        fence = self._inner.fence()
        if fence is None:
            send = partial(self._inner.exchange, key, staged, priority, done)
            self._after_copies(operation, send)
            return
        self._first.setdefault(id(operation), fence)
        _signal_at(self._out, fence)
        self._inner.exchange_at(fence, key, staged, priority, done)

    def _after_copies(self, operation: Operation, call: Callback) -> None:
        """Have the inner transport called when what it will send has left the GPU."""

        def left() -> None:
            self._on_device.discard(id(operation))
            call()

        self._watch(left)

    def _watch(self, call: Callback | None) -> None:
        """Have the copies off the GPU watched until now: for whom they call, and for its errors."""
        assert self._when is not None, "attach comes first"
        event = torch.cuda.Event(blocking=True)
        event.record(self._out)
        self._when(event, call)

    def _posted(self, bring: Done) -> Done:
        """Have a result brought on the driving thread, unless all has failed until then."""

        def later(result: Received | CompressaError) -> None:
            self._post(lambda: bring(self._failure or result))

        return later

    def _bring(
        self,
        incoming: Mapping[int, torch.Tensor],
        arrivals: _Arrivals,
        result: Received | CompressaError,
    ) -> None:
        """Copy what a piece has received to the GPU."""
        if isinstance(result, CompressaError):
            arrivals.arrived(result)
            return
        if arrivals.ended:
            return  # a piece has failed, and the memory may be somebody else's by now
        with on(self._in):
            for peer, staged in result.items():
                incoming[peer][: staged.numel()].copy_(staged, non_blocking=True)
        arrivals.arrived(None, {peer: staged.numel() for peer, staged in result.items()})

    def _bring_sum(
        self,
        piece: torch.Tensor,
        staged: torch.Tensor,
        arrivals: _Arrivals,
        result: Received | CompressaError,
    ) -> None:
        """Copy the sum of a piece to where its terms came from."""
        failure = result if isinstance(result, CompressaError) else None
        if failure is None and not arrivals.ended:
            with on(self._in):
                piece.copy_(staged, non_blocking=True)
        arrivals.arrived(failure)

    def _follow_copies(self) -> None:
        """What is given to the stream from now on finds all that was received."""
        self._stream.wait_event(self._in.record_event())


class _Arrivals:
    """Counts pieces that come in any order; reports once."""

    def __init__(
        self,
        pieces: int,
        follow: Callback,
        landed: Callable[[CompressaError | None, Mapping[int, int]], None],
    ) -> None:
        self._due = pieces
        self._follow = follow
        self._landed = landed
        self._lengths: Counter[int] = Counter()

    @property
    def ended(self) -> bool:
        """Whether it has reported already."""
        return not self._due

    def arrived(
        self, failure: CompressaError | None, lengths: Mapping[int, int] | None = None
    ) -> None:
        """Note a piece: so many bytes of each peer, or why it failed, which ends all."""
        if self.ended:
            return
        self._lengths.update(lengths or {})
        self._due = 0 if failure else self._due - 1
        if self.ended:
            self._follow()
            self._landed(failure, self._lengths)


def _piece(exchange: Exchange, low: int, high: int) -> Exchange:
    """What an exchange has between two indices of its messages."""
    size = high - low
    return Exchange(
        {peer: buffer[low:high] for peer, buffer in exchange.outgoing.items()},
        {peer: buffer[low:high] for peer, buffer in exchange.incoming.items()},
        exchange.exact,
        {peer: min(max(n - low, 0), size) for peer, n in exchange.capacity_bytes.items()},
    )


def _signal_at(stream: torch.cuda.Stream, fence: Fence) -> None:
    """Have a stream come to a fence after all that it was given."""
    from compressa.transports.lowered.fence import signal_function  # brings numba

    try:
        call_at(stream, signal_function(), fence.address)
    except RuntimeError as error:
        raise call_failed("cuLaunchHostFunc", error) from error


def _at_once(callback: Callback) -> None:
    """What posting is, until there is another thread."""
    callback()


def _pinned_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.numel(), dtype=x.dtype, pin_memory=True)
