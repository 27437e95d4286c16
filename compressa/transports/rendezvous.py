"""Rendezvous: one TCP connection between every two ranks, and with nobody else.

Every rank listens on one address of its own and tells it to the others over a channel that they
already have. Each connects to the ranks below it. Both ends of a connection prove that they know
a secret which rank 0 drew and the channel carried, by an HMAC over both ends' nonces, ranks and
the epoch; a connection that fails to do so is closed, and the next one is waited for.

The address is that of the interface named by GLOO_SOCKET_IFNAME, or else what this host's name
stands for, as for Gloo.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from compressa.errors import PeerLost, Timeout, TransportError

AllGather = Callable[[bytes, str, float], list[bytes]]

_MAGIC = b"compressa-tcp-1\0"
_NONCE_BYTES = 16
_PROOF_BYTES = hashlib.sha256().digest_size
_HELLO = struct.Struct(f"<16sII{_NONCE_BYTES}s{_PROOF_BYTES}s")
_STRANGER_S = 2.0  # most that a connection which proves nothing may cost
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class _Seat(NamedTuple):
    """Where a rank listens."""

    address: str
    port: int


def connect_mesh(
    rank: int, size: int, epoch: int, all_gather: AllGather, deadline_s: float
) -> dict[int, socket.socket]:
    """Connect this rank to every other; all ranks must call it together.

    Args:
        rank: This rank.
        size: Number of ranks.
        epoch: The same on every rank.
        all_gather: Brings bytes of every rank to every rank, within a deadline.
        deadline_s: For the whole, in seconds.

    Returns:
        A connected, blocking socket for every other rank.

    Raises:
        Timeout: A rank did not come in time.
        TransportError: There is no address to listen on, or a rank cannot be reached.
    """
    end_s = time.monotonic() + deadline_s
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(_listen(size))
        address, port = listener.getsockname()[:2]
        secret = secrets.token_hex(32) if rank == 0 else ""
        own = json.dumps({"address": address, "port": port, "secret": secret})
        answers = all_gather(own.encode(), "addresses", deadline_s)
        seats = [_read_seat(text, peer) for peer, text in enumerate(answers)]
        door = _Door(rank, epoch, bytes.fromhex(json.loads(answers[0])["secret"]))
        links: dict[int, socket.socket] = {}
        undo.callback(_close_all, links)
        for peer in range(rank):
            links[peer] = _connect(door, peer, seats[peer], end_s)
        while len(links) < size - 1:
            peer, link = _accept(door, listener, range(rank + 1, size), links, end_s)
            links[peer] = link
        listener.close()
        undo.pop_all()
        return links


def _close_all(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()


class _Door(NamedTuple):
    """What a rank needs to let others in, and to be let in."""

    rank: int
    epoch: int
    secret: bytes

    def proof(self, role: bytes, caller: int, callee: int, nonces: bytes) -> bytes:
        text = role + struct.pack("<III", self.epoch, caller, callee) + nonces
        return hmac.digest(self.secret, text, "sha256")


def _listen(backlog: int) -> socket.socket:
    address = local_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(2 * backlog)
    except OSError as error:
        listener.close()
        raise TransportError(
            f"cannot listen on {address} ({error.strerror}); set GLOO_SOCKET_IFNAME to the "
            "interface that the ranks reach each other by"
        ) from error
    return listener


def local_address() -> str:
    """Return the address that this rank listens on.

    Raises:
        TransportError: GLOO_SOCKET_IFNAME names no interface that has an IPv4 address.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        return _interface_address(name)
    with contextlib.suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.bind((place[0], 0))
                return str(place[0])
    return "127.0.0.1"


def _interface_address(name: str) -> str:
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
        bytes.fromhex(said["secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise PeerLost(peer, f"rank {peer} sent an address that cannot be read") from error
    return seat


def _connect(door: _Door, peer: int, seat: _Seat, end_s: float) -> socket.socket:
    """Connect to a rank that listens already, and let both prove themselves."""
    link: socket.socket | None = None
    try:
        link = socket.create_connection(seat, _left(end_s))
        link.settimeout(_left(end_s))
        theirs = _receive(link, _NONCE_BYTES)
        nonces = theirs + secrets.token_bytes(_NONCE_BYTES)
        proof = door.proof(b"caller", door.rank, peer, nonces)
        link.sendall(_HELLO.pack(_MAGIC, door.epoch, door.rank, nonces[_NONCE_BYTES:], proof))
        if not hmac.compare_digest(
            _receive(link, _PROOF_BYTES), door.proof(b"callee", door.rank, peer, nonces)
        ):
            raise ConnectionError("it does not know the secret")
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


def _accept(
    door: _Door,
    listener: socket.socket,
    welcome: Sequence[int],
    links: dict[int, socket.socket],
    end_s: float,
) -> tuple[int, socket.socket]:
    """Wait for one of the ranks that are still missing; strangers are sent away."""
    while True:
        missing = tuple(peer for peer in welcome if peer not in links)
        listener.settimeout(_left(end_s))
        try:
            link, _ = listener.accept()
        except TimeoutError as error:
            names = ", ".join(map(str, missing))
            raise Timeout(missing, f"ranks {names} did not connect in time") from error
        try:
            link.settimeout(min(_STRANGER_S, _left(end_s)))
            peer = _admit(door, link, missing)
        except OSError:  # a stranger, or one that gave up
            link.close()
            continue
        link.settimeout(None)
        return peer, link


def _admit(door: _Door, link: socket.socket, missing: Sequence[int]) -> int:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    link.sendall(nonce)
    magic, epoch, peer, theirs, proof = _HELLO.unpack(_receive(link, _HELLO.size))
    expected = door.proof(b"caller", peer, door.rank, nonce + theirs)
    known = magic == _MAGIC and epoch == door.epoch and peer in missing
    if not (hmac.compare_digest(proof, expected) and known):
        raise ConnectionError("a stranger")
    link.sendall(door.proof(b"callee", peer, door.rank, nonce + theirs))
    return int(peer)


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError("it hung up")
        data += part
    return data


def _left(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())


def _drop(link: socket.socket | None) -> None:
    if link is not None:
        link.close()
