"""A proxy between two ranks: real sockets, whose bytes somebody may change on the way."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from compressa.transports import rendezvous
from compressa.transports.frames import FRAME_HEADER_BYTES

Change = Callable[[bytes, bytes], bytes]
"""From a frame's header and data to what goes on in place of both."""

_HANDSHAKES = ((76,), (16, 32))  # of the caller, and of who was called; see `transports.handshake`
_SIZES = struct.Struct("<III")
_SIZES_AT = 20


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def _carry(
    source: socket.socket, target: socket.socket, handshake: tuple[int, ...], change: Change
) -> None:
    """Pass on the handshake as it is, then one frame after the other, until either end closes."""
    try:
        for size in handshake:
            target.sendall(_exactly(source, size))
        while True:
            header = _exactly(source, FRAME_HEADER_BYTES)
            data = _exactly(source, _SIZES.unpack_from(header, _SIZES_AT)[2])
            target.sendall(change(header, data))
    except OSError:
        for link in (source, target):
            link.close()


@contextmanager
def between(to_callee: Change, to_caller: Change) -> Iterator[None]:
    """Have connections that this rank makes to others go through a proxy.

    Args:
        to_callee: What happens to frames of this rank, which calls those below it.
        to_caller: What happens to frames to it.
    """
    connect = socket.create_connection

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        onward = connect(address, timeout)
        onward.settimeout(None)
        with socket.create_server(("127.0.0.1", 0)) as server:
            own = connect(server.getsockname(), timeout)
            inside, _ = server.accept()
        ways = ((inside, onward, to_callee), (onward, inside, to_caller))
        for way, handshake in zip(ways, _HANDSHAKES, strict=True):
            source, target, change = way
            arguments = source, target, handshake, change
            threading.Thread(target=_carry, args=arguments, daemon=True).start()
        return own

    with mock.patch.object(rendezvous.socket, "create_connection", connected):
        yield
