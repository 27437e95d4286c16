"""Rendezvous: TCP connections between every two ranks, and with nobody else.

Every rank listens on one address of its own and tells it to the others over a channel that they
already have. Each connects to the ranks below it, once or several times. Both ends of a connection
prove that they know a secret which rank 0 drew and the channel carried; see `handshake`.

The address is that of the interface named by GLOO_SOCKET_IFNAME, or else what this host's name
stands for, as for Gloo.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable
from itertools import product, starmap
from typing import NamedTuple

from compressa.errors import PeerLost, Timeout, TransportError
from compressa.transports import forks
from compressa.transports.handshake import ConnectionId, Entrance, Handshake, time_left

AllGather = Callable[[bytes, str, float], list[bytes]]

_SECRET_BYTES = 32
_QUEUE = 64  # room for strangers, so that no rank has to knock twice
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class _Seat(NamedTuple):
    """Where a rank listens."""

    address: str
    port: int


def connect_mesh(
    rank: int,
    size: int,
    epoch: int,
    all_gather: AllGather,
    deadline_s: float,
    connections: int = 1,
    secret: bytes | None = None,
) -> dict[int, list[socket.socket]]:
    """Connect this rank to every other; all ranks must call it together.

    Args:
        rank: This rank.
        size: Number of ranks.
        epoch: The same on every rank.
        all_gather: Brings bytes of every rank to every rank, within a deadline.
        deadline_s: For the whole, in seconds.
        connections: How many between every two ranks; the same on every rank.
        secret: What all ranks know and nobody else; None to have rank 0 draw it and `all_gather`
            carry it.

    Returns:
        Connected, blocking sockets for every other rank, in the same order at both ends.

    Raises:
        Timeout: A rank did not come in time.
        TransportError: There is no address to listen on, or a rank cannot be reached.
    """
    end_s = time.monotonic() + deadline_s
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(_listen(size * connections))
        address, port = listener.getsockname()[:2]
        drawn = secrets.token_hex(_SECRET_BYTES) if rank == 0 else ""
        own = json.dumps({"address": address, "port": port, "secret": drawn})
        answers = all_gather(own.encode(), "addresses", deadline_s)
        seats = [_read_seat(text, peer) for peer, text in enumerate(answers)]
        handshake = Handshake(
            rank, epoch, secret or bytes.fromhex(json.loads(answers[0])["secret"])
        )
        links: dict[ConnectionId, socket.socket] = {}
        undo.callback(_close_all, links)
        numbers = range(connections)
        for each in _wanted(range(rank), numbers):
            links[each] = _connect(handshake, each, seats[each.peer], end_s)
        Entrance(handshake, listener, _wanted(range(rank + 1, size), numbers)).wait(links, end_s)
        listener.close()
        undo.pop_all()
        others = [peer for peer in range(size) if peer != rank]
        return {peer: [links[each] for each in _wanted([peer], numbers)] for peer in others}


def _wanted(peers: Iterable[int], numbers: Iterable[int]) -> list[ConnectionId]:
    return list(starmap(ConnectionId, product(peers, numbers)))


def _close_all(links: dict[ConnectionId, socket.socket]) -> None:
    for link in links.values():
        link.close()


def _listen(backlog: int) -> socket.socket:
    address = local_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    forks.own(listener)
    try:
        listener.bind((address, 0))
        listener.listen(2 * backlog + _QUEUE)
    except OSError as error:
        listener.close()
        raise TransportError(
            f"cannot listen on {address} ({error.strerror}); set GLOO_SOCKET_IFNAME to the "
            "interface that the ranks reach each other by"
        ) from error
    return listener


def local_address() -> str:
    """Return the address that this rank listens on, IPv4 or IPv6.

    That of the interface that GLOO_SOCKET_IFNAME names; else what the host's name stands for, or
    127.0.0.1 where that can not be listened on.

    Raises:
        TransportError: GLOO_SOCKET_IFNAME names no interface that has an IPv4 address.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        return interface_address(name)
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.bind((address[0], 0))
                return str(address[0])
    return "127.0.0.1"


def interface_address(name: str) -> str:
    """Return the IPv4 address of an interface.

    Raises:
        TransportError: It has none, or there is no such interface.
    """
    import fcntl  # there is none on Windows, and no Gloo that names interfaces

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError as error:
            raise TransportError(
                f'GLOO_SOCKET_IFNAME is "{name}", which has no IPv4 address '
                f"({error.strerror}); name one of {_interfaces()}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _interfaces() -> str:
    return ", ".join(name for _, name in socket.if_nameindex())


def _read_seat(text: bytes, peer: int) -> _Seat:
    """Check what a rank says of itself."""
    try:
        said = json.loads(text)
        seat = _Seat(str(ipaddress.ip_address(said["address"])), int(said["port"]))
        secret = bytes.fromhex(said["secret"])
        if not 0 < seat.port < 1 << 16 or len(secret) != (0 if peer else _SECRET_BYTES):
            raise ValueError(text)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise PeerLost(peer, f"rank {peer} sent an address that cannot be read") from error
    return seat


def _connect(
    handshake: Handshake, connection: ConnectionId, seat: _Seat, end_s: float
) -> socket.socket:
    """Connect to a rank that listens already, and let both prove themselves."""
    peer, link = connection.peer, None
    try:
        link = socket.create_connection(seat, time_left(end_s))
        forks.own(link)
        handshake.knock(link, connection, end_s)
    except TimeoutError as error:
        _drop(link)
        raise Timeout((peer,), f"rank {peer} at {seat.address} did not answer in time") from error
    except OSError as error:
        _drop(link)
        raise TransportError(
            f"rank {peer} cannot be reached at {seat.address}, port {seat.port} "
            f"({error.strerror or error}); set GLOO_SOCKET_IFNAME there to the interface that the "
            "ranks reach each other by, and open its ports"
        ) from error
    return link


def _drop(link: socket.socket | None) -> None:
    if link is not None:
        link.close()
