"""TcpTransport: named messages over plain TCP sockets, all driven by one thread.

A link to every other rank, no thread of its own: the communication thread serves the sockets, so
that between a message's arrival and the next step of its program there is no other thread. Sums of
plain values and exchanges have connections of their own to every other rank, which compiled code
serves (`transports.lowered`): striped, with a MAC in each frame, at a pace where these are asked
for. Where there is no such code, the reactor serves those of `link`, and large sums are left to
Gloo's all-reduce.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, LoweredSum
from compressa.collectives.lowering import Table
from compressa.errors import CompressaError, PeerLost
from compressa.kernels.compiled import PATIENCE_S
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Done, Key, OnCome, OnSent, Traffic
from compressa.transports.link import Link
from compressa.transports.lowered import AVAILABLE
from compressa.transports.mesh import MeshTransport
from compressa.transports.reactor import Reactor
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.settings import Settings
from compressa.transports.setup import Setup

if TYPE_CHECKING:
    from compressa.transports.lowered.fence import Fence
    from compressa.transports.lowered.loop import Loop

_AGAIN_S = 0.001


class TcpTransport(MeshTransport):
    """A full mesh of TCP connections; see `rendezvous` for how they are made.

    Args:
        rank: This rank.
        sockets: For every other rank, equally many connected sockets; owned from now on.
        settings: Sizes and times of the connections.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, when a peer is lost or sends nonsense.
        backend_sum: Sums large tensors; None to offer no sums.
        lowered: Sockets for every other rank, for compiled code; None for none.
    """

    name = "tcp"

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, Sequence[socket.socket]],
        settings: Settings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
        backend_sum: BackendSum | None = None,
        lowered: Mapping[int, Sequence[socket.socket]] | None = None,
    ) -> None:
        striped = any(len(several) > 1 for several in sockets.values())
        any_order_bytes = settings.chunk_bytes if striped else None
        super().__init__(
            rank, len(sockets) + 1, settings.epoch, early_bytes, failed, any_order_bytes
        )
        self._settings = settings
        self._sum = backend_sum
        self._reactor: Reactor | None = None
        self._loop: Loop | None = None
        if lowered is not None:
            from compressa.transports.lowered.loop import Loop  # brings numba

            number = max((len(several) for several in sockets.values()), default=0)
            self._loop = Loop(rank, lowered, settings, early_bytes, self._loop_failed, number)
        self._links = {
            peer: Link(several, peer, settings, self.inboxes[peer], self.link_failed, self.leave)
            for peer, several in sockets.items()
        }

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor serve the sockets: before it runs, or on its thread."""
        self._reactor = reactor
        reactor.stay_awake(self._settings.poll_s, lambda: bool(self._pending))
        for link in self._links.values():
            link.attach(reactor)
        if self._loop is not None:
            reactor.wait_by(self._loop)

    def observe(self, on_sent: OnSent | None) -> None:
        """Have it reported when the kernel has a message's first byte and its last."""
        for link in self._links.values():
            link.observe(on_sent)
        if self._loop is not None:
            self._loop.observe(on_sent)

    def hear(self, on_come: OnCome | None) -> None:
        """Have it reported when a message's first byte and its last are here."""
        super().hear(on_come)
        if self._loop is not None:
            self._loop.hear(on_come)

    @contextlib.contextmanager
    def batched(self) -> Iterator[None]:
        """Have several messages to a peer leave in one call, when the block ends."""
        if self._loop is not None:
            self._loop.hold(True)
        for link in self._links.values():
            link.gather()
        try:
            yield
        finally:
            for link in self._links.values():
                link.release()
            if self._loop is not None:
                self._loop.hold(False)

    @property
    def sums(self) -> bool:
        """Whether there is a backend that sums, and nothing is paced, which sums can not be."""
        return self._sum is not None and self._settings.pacer.rate_bits_per_s is None

    @property
    def lowers(self) -> bool:
        """Whether there is a compiled loop."""
        return self._loop is not None

    @property
    def heard_s(self) -> dict[int, float]:
        """By peer that is still there, when something came from it last, on `time.monotonic`."""
        return {peer: link.heard_s for peer, link in self._links.items() if peer not in self._gone}

    def beat(self) -> None:
        """Give all peers a sign of life to whom nothing else is on its way; never blocks."""
        for link in self._links.values():
            link.beat()

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Have the compiled loop exchange; if a call on another thread drives it, soon after."""
        if self._loop is None:
            super().exchange(key, exchange, priority, done)
        else:
            self.exchange_at(None, key, exchange, priority, done)

    def fence(self) -> Fence | None:
        """Return a fence of the compiled loop's, if there is one."""
        return None if self._loop is None else self._loop.fences.new()

    def exchange_at(
        self, fence: Fence | None, key: Key, exchange: Exchange, priority: int, done: Done
    ) -> None:
        """Have the compiled loop exchange when it is woken, or now without a fence."""
        assert self._loop is not None, "there is no compiled loop"
        for peer in self._gone.intersection(exchange.outgoing):
            if exchange.outgoing[peer].numel():
                self.must_be_here(peer)
        if not self._loop.exchange(key, exchange, priority, done, fence):
            self._again(partial(self.exchange_at, fence, key, exchange, priority, done))

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, priority: int, sent: Callable[[], None]
    ) -> None:
        """Hand over what the kernel takes now, and the rest later; see `TaggedTransport.send`."""
        self.must_be_here(peer)
        self._links[peer].send(key, buffer, (key.step, priority), sent)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Start the sum by Gloo; see `BackendSum.all_reduce`. Only if `sums`."""
        assert self._sum is not None, "this transport offers no sums"
        self._sum.all_reduce(operation, done)

    def lower(self, table: Table, dtype: torch.dtype) -> object | None:
        """Return what the compiled loop runs, if there is one, and it can add the values."""
        return None if self._loop is None else self._loop.program(table, dtype)

    def sum(self, key: Key, stride: int, operation: LoweredSum, priority: int, done: Done) -> None:
        """Have the compiled loop run a sum; if a call on another thread drives it, soon after."""
        assert self._loop is not None, "nothing was lowered"
        what = operation.program, operation.values, operation.divisor
        if not self._loop.start(*what, key, stride, priority, lambda: done({})):
            self._again(partial(self.sum, key, stride, operation, priority, done))

    def sum_now(self, key: Key, operation: LoweredSum) -> bool:
        """Run the compiled loop on this thread, if nobody else does, for a short time."""
        assert self._loop is not None, "nothing was lowered"
        if not isinstance(operation.values, torch.Tensor):  # of no call: they are a unit's
            return False
        return self._loop.run(operation.program, operation.values, operation.divisor, key)

    def _again(self, call: Callable[[], None]) -> None:
        assert self._reactor is not None, "attach comes first"
        self._reactor.call_at(time.monotonic() + _AGAIN_S, call)

    def _loop_failed(self, error: CompressaError) -> None:
        """Report it, also of a peer that had said goodbye: what it owes will never come."""
        if isinstance(error, PeerLost):
            self._lost.setdefault(error.rank, error)
        self.report(error)

    def missing(self, key: Key) -> Sequence[int]:
        """Return the peers that an exchange or a lowered sum waits for, ascending."""
        lowered = [] if self._loop is None else self._loop.missing(key)
        return lowered or super().missing(key)

    @property
    def traffic(self) -> Traffic:
        """Frames with their headers, and what a ring must have sent for the backend's sums."""
        links, loop = self._links.values(), self._loop
        sent = sum(link.sent_bytes for link in links)
        messages = sum(link.messages for link in links)
        if self._sum is not None:
            sent += self._sum.sent_bytes
        if loop is not None:
            sent, messages = sent + loop.sent_bytes, messages + loop.messages
        return Traffic(sent, messages)

    def end_link(self, peer: int, *, drop: bool) -> None:
        """End the own streams to the peer, after what is queued, or without it."""
        self._links[peer].finish(drop=drop)

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; `close` waits for none of a lost peer's."""
        if self._loop is not None:
            self._loop.fail()
        super().fail(error)
        if isinstance(error, PeerLost):
            self._lost.setdefault(error.rank, error)

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone, wait for theirs, and close all sockets.

        The reactor must not run any more: this polls it. A transport that was never attached gets
        one for the goodbye.

        Args:
            timeout_s: Longest wait for the goodbyes of peers that are not lost.
        """
        if self._reactor is None:
            with contextlib.closing(Reactor()) as reactor:
                self.attach(reactor)
                self.close(timeout_s)
            return
        if self._loop is not None:
            self._loop.finish()
        for link in self._links.values():
            link.finish()
        end_s = time.monotonic() + timeout_s
        awaited = [link for peer, link in self._links.items() if peer not in self._lost]
        while any(link.open for link in awaited) and time.monotonic() < end_s:
            self._reactor.poll(max(0.0, end_s - time.monotonic()))
        for link in self._links.values():
            link.close()
        if self._loop is not None:
            self._loop.close()
        if self._sum is not None:
            self._sum.close()


def _prepare() -> None:
    """Compile or load the loop, while few files are open."""
    from compressa.transports.lowered.compile import prepare

    prepare()


def _can_lower(settings: Settings) -> bool:
    """Whether compiled code can make the checks of frames, and share the bucket of a pacer."""
    from compressa.transports.lowered.bucket import can_share
    from compressa.transports.lowered.digests import openssl

    return can_share(settings.pacer) and (not settings.authenticated or openssl() is not None)


def open_tcp(setup: Setup) -> TcpTransport:
    """Connect this rank to every other; see `Entry.open`.

    Raises:
        Timeout: A rank did not come within `start_s`.
        TransportError: There is no address to listen on, or a rank cannot be reached.
    """
    settings = setup.settings.shared(setup.connections)
    lowers = AVAILABLE and _can_lower(settings)
    everywhere = setup.all_gather(b"%d" % lowers, "kinds of systems", setup.start_s)
    lowers = all(answer == b"1" for answer in everywhere)
    if lowers:  # who hangs at the start compiles nothing
        _prepare()
        setup.all_gather(b"", "compiled loops", setup.start_s + PATIENCE_S)
    sockets = connect_mesh(
        setup.rank,
        setup.size,
        settings.epoch,
        setup.all_gather,
        setup.start_s,
        setup.connections + lowers,
        settings.keys.named("handshake").secret,
    )
    lowered = None
    if lowers:  # the reactor's carries signs of life alone
        lowered = {peer: several[1:] for peer, several in sockets.items()}
        sockets = {peer: several[:1] for peer, several in sockets.items()}
    backend_sum = None if settings.authenticated else BackendSum(setup.group)
    sizes = settings, setup.early_bytes
    return TcpTransport(setup.rank, sockets, *sizes, setup.failed, backend_sum, lowered)
