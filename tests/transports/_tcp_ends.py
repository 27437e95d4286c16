"""A link on a reactor run by hand, and plain sockets at its other end."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from compressa.errors import CompressaError
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind
from compressa.transports.inbox import Inbox
from compressa.transports.link import Link
from compressa.transports.reactor import Reactor
from compressa.transports.settings import Settings

EPOCH = 4
PEER = 3
CHUNK_BYTES = 1 << 12
CREDIT_BYTES = 5 * CHUNK_BYTES
LIMIT_BYTES = 1 << 20


def tcp_pair(buffer_bytes: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection; buffers are the kernel's least if asked for."""
    with socket.socket() as listener:
        if buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.socket()
        if buffer_bytes is not None:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    far.settimeout(10.0)
    return near, far


class Side:
    """A link with its inbox, and all that it reported."""

    def __init__(self, reactor: Reactor, *links: socket.socket, **how: Any) -> None:
        limit_bytes = how.pop("limit_bytes", LIMIT_BYTES)
        given = {"epoch": EPOCH, "chunk_bytes": CHUNK_BYTES, "credit_bytes": CREDIT_BYTES}
        tcp = Settings(**{**given, "silence_s": 10.0, **how})
        self.inbox = Inbox(PEER, limit_bytes, tcp.chunk_bytes if len(links) > 1 else None)
        self.failures: list[CompressaError] = []
        self.departures: list[int] = []
        self.arrived: dict[Key, torch.Tensor] = {}
        self.order: list[Key] = []
        self.sent: list[Key] = []
        self.link = Link(links, PEER, tcp, self.inbox, self.failures.append, self.departures.append)
        self.link.attach(reactor)

    def send(self, key: Key, data: torch.Tensor, priority: int = 0) -> None:
        self.link.send(key, data, (key.step, priority), partial(self.sent.append, key))

    def expect(self, key: Key, buffer: torch.Tensor, exact: bool = False) -> None:
        self.inbox.expect(key, buffer, exact, partial(self._arrive, key))

    def _arrive(self, key: Key, filled: torch.Tensor) -> None:
        assert key not in self.arrived, "a message arrived twice"
        self.arrived[key] = filled
        self.order.append(key)


class Bench:
    """A reactor run by hand, a link on it, and plain sockets at its other end."""

    def __init__(
        self,
        buffer_bytes: int | None = None,
        connections: int = 1,
        pair: Callable[[], tuple[socket.socket, socket.socket]] | None = None,
        **how: Any,
    ) -> None:
        self.reactor = Reactor()
        pair = pair or partial(tcp_pair, buffer_bytes)
        pairs = [pair() for _ in range(connections)]
        self.fars = [far for _, far in pairs]
        self.far = self.fars[0]
        self.near = Side(self.reactor, *(near for near, _ in pairs), **how)

    def until(self, what: Callable[[], Any], timeout_s: float = 10.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < end_s, "it did not happen"
            self.reactor.run_once(0.01)

    def settle(self) -> None:
        """Serve all that has come."""
        for _ in range(4):
            self.reactor.run_once(0.005)

    def close(self) -> None:
        self.near.link.close()
        for far in self.fars:
            far.close()
        self.reactor.close()


def content(key: Key, length: int) -> torch.Tensor:
    seed = key.step * 100 + key.unit * 10 + key.stage
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=generator, dtype=torch.uint8)


def frame_bytes(frame: Frame, data: torch.Tensor | None = None) -> bytes:
    header, body = np.zeros(FRAME_HEADER_BYTES, np.uint8), b"" if data is None else data.numpy()
    frame.write(header, memoryview(body))
    return header.tobytes() + bytes(body)


def stream(key: Key, data: torch.Tensor, chunk: int = CHUNK_BYTES, epoch: int = EPOCH) -> bytes:
    """The bytes of a message on the wire."""
    parts = []
    for start in range(0, data.numel(), chunk):
        part = data[start : start + chunk]
        frame = Frame(Kind.DATA, epoch, key, data.numel(), start, part.numel())
        parts.append(frame_bytes(frame, part))
    return b"".join(parts)


def reset(link: socket.socket) -> None:
    """Close it so that the other end sees a reset, as when a host is rebooted."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def receive(bench: Bench, size: int, number: int = 0) -> bytes:
    """Read from a far end what the connection sends."""
    data, far = b"", bench.fars[number]
    far.setblocking(False)
    end_s = time.monotonic() + 10.0
    while len(data) < size and time.monotonic() < end_s:
        bench.reactor.run_once(0.001)
        try:
            part = far.recv(size - len(data))
        except BlockingIOError:
            continue
        if not part:
            break
        data += part
    return data
