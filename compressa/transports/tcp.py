"""TcpTransport: named messages over plain TCP sockets, all driven by one thread.

A connection to every other rank, no thread of its own: the communication thread's reactor serves
the sockets, so that between a message's arrival and the next step of its program there is no
other thread. Dense sums are left to Gloo's all-reduce, which moves bytes without Python.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

import torch

from compressa.collectives.base import BackendAllReduce
from compressa.errors import CompressaError, PeerLost
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Done, Key, Traffic
from compressa.transports.connection import Connection, TcpSettings
from compressa.transports.mesh import MeshTransport
from compressa.transports.reactor import Reactor


class TcpTransport(MeshTransport):
    """A full mesh of TCP connections; see `rendezvous` for how they are made.

    Args:
        rank: This rank.
        links: A connected socket for every other rank; owned from now on.
        settings: Sizes and times of the connections.
        early_bytes: Most bytes that one peer may send before anybody waits for them.
        failed: Called once, when a peer is lost or sends nonsense.
        backend_sum: Sums large tensors; None to offer no sums.
    """

    def __init__(
        self,
        rank: int,
        links: Mapping[int, socket.socket],
        settings: TcpSettings,
        early_bytes: int,
        failed: Callable[[CompressaError], None],
        backend_sum: BackendSum | None = None,
    ) -> None:
        super().__init__(rank, len(links) + 1, settings.epoch, early_bytes, failed)
        self._settings = settings
        self._sum = backend_sum
        self._reactor: Reactor | None = None
        self._silent: set[int] = set()
        self._connections = {
            peer: Connection(link, peer, settings, self.inboxes[peer], self.link_failed, self.leave)
            for peer, link in links.items()
        }

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor serve the sockets; every other call is for its thread."""
        self._reactor = reactor
        for connection in self._connections.values():
            connection.attach(reactor)

    @property
    def sums(self) -> bool:
        """Gloo has an all-reduce, which nobody can pace."""
        return self._sum is not None and self._settings.pacer.rate_bits_per_s is None

    def send(
        self, peer: int, key: Key, buffer: torch.Tensor, place: int, sent: Callable[[], None]
    ) -> None:
        """Send at once what the kernel takes."""
        self.must_be_here(peer)
        self._connections[peer].send(key, buffer, (key.step, place), sent)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Sum with Gloo's own algorithm."""
        assert self._sum is not None, "this transport offers no sums"
        self._sum.all_reduce(operation, done)

    @property
    def traffic(self) -> Traffic:
        """Frames, and what the backend's sums must have sent."""
        connections = self._connections.values()
        sent = sum(connection.sent_bytes for connection in connections)
        summed = 0 if self._sum is None else self._sum.sent_bytes
        return Traffic(sent + summed, sum(connection.messages for connection in connections))

    def end_link(self, peer: int, *, drop: bool) -> None:
        """End the own stream to the peer."""
        self._connections[peer].finish(drop=drop)

    def fail(self, error: CompressaError) -> None:
        """Drop what is queued and say goodbye; nothing more is expected of a lost peer."""
        super().fail(error)
        if isinstance(error, PeerLost):
            self._silent.add(error.rank)

    def close(self, timeout_s: float) -> None:
        """Say goodbye to everyone and wait for theirs. The reactor must not run any more."""
        connections = self._connections.values()
        if self._reactor is None:
            with contextlib.closing(Reactor()) as reactor:
                self.attach(reactor)
                self.close(timeout_s)
            return
        for connection in connections:
            connection.finish()
        end_s = time.monotonic() + timeout_s
        awaited = [c for peer, c in self._connections.items() if peer not in self._silent]
        while any(c.open for c in awaited) and time.monotonic() < end_s:
            self._reactor.poll(max(0.0, end_s - time.monotonic()))
        for connection in connections:
            connection.close()
        if self._sum is not None:
            self._sum.close()
