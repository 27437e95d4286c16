"""Handshake: both ends of a new connection prove that they know a secret, by HMACs over nonces.

The called rank sends a nonce; the caller answers with its rank, which of its connections this is,
the epoch, a nonce of its own and a proof over all of it; the called rank answers with its proof. A
proof names both ranks, the connection, the epoch and the role, so that it serves once, for
one connection. Whoever fails is sent away, which is logged, and who says nothing delays nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from compressa.errors import Timeout
from compressa.transports import forks

_MAGIC = b"compressa-tcp-2\0"
_NONCE_BYTES = 16
_PROOF_BYTES = hashlib.sha256().digest_size
_HELLO = struct.Struct(f"<16sIII{_NONCE_BYTES}s{_PROOF_BYTES}s")
_MOST_STRANGERS = 64  # connections that may be open and prove nothing
_PATIENCE_S = 0.5  # for which each of them may stay at least
_MOST_LOGGED = 20  # one by one; a flood must not fill the log as well
_SAID_NOTHING = "it did not prove itself in time"

_log = logging.getLogger(__name__)


class ConnectionId(NamedTuple):
    """Which connection of a rank.

    Attributes:
        peer: Rank at the other end.
        number: Which of those between the two it is, from 0.
    """

    peer: int
    number: int


class Handshake(NamedTuple):
    """What a rank needs to let others in, and to be let in.

    Attributes:
        rank: This rank.
        epoch: The same on every rank.
        secret: The same on every rank, and known to nobody else.
    """

    rank: int
    epoch: int
    secret: bytes

    def proof(self, role: bytes, caller: int, callee: int, number: int, nonces: bytes) -> bytes:
        """Return what only somebody who knows the secret can say: 32 bytes of HMAC-SHA256.

        Args:
            role: `b"caller"` or `b"callee"`: which of the two proves itself.
            caller: Rank that has connected.
            callee: Rank that listens.
            number: Which of the connections between the two it is.
            nonces: The callee's 16 random bytes, then the caller's.
        """
        text = role + struct.pack("<IIII", self.epoch, caller, callee, number) + nonces
        return hmac.digest(self.secret, text, "sha256")

    def knock(self, link: socket.socket, connection: ConnectionId, end_s: float) -> None:
        """Prove this rank to a peer that was called, and have it prove itself; blocks.

        Args:
            link: A connected socket, which blocks without a timeout afterwards.
            connection: The peer, and which connection to it this is.
            end_s: Until when, on `time.monotonic`.

        Raises:
            TimeoutError: It did not answer in time.
            OSError: It hung up, or does not know the secret.
        """
        theirs = _receive(link, _NONCE_BYTES, end_s)
        nonces = theirs + secrets.token_bytes(_NONCE_BYTES)
        proof = self.proof(b"caller", self.rank, *connection, nonces)
        own = nonces[_NONCE_BYTES:]
        link.sendall(_HELLO.pack(_MAGIC, self.epoch, self.rank, connection.number, own, proof))
        answer = _receive(link, _PROOF_BYTES, end_s)
        if not hmac.compare_digest(answer, self.proof(b"callee", self.rank, *connection, nonces)):
            raise ConnectionError("it does not know the secret")
        link.settimeout(None)


class _Guest:
    """Somebody who has connected and has not proved who it is."""

    def __init__(self, link: socket.socket, address: object) -> None:
        self.link = link
        forks.own(link)
        self.address = address
        self.since_s = time.monotonic()
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._hello = b""
        link.setblocking(False)
        link.sendall(self._nonce)  # a new connection has room for it

    def listen(self, handshake: Handshake, missing: Sequence[ConnectionId]) -> ConnectionId | None:
        """Take what has come; return which it is once that is proved.

        Raises:
            OSError: It gave up, or is a stranger.
        """
        self._hello += _part(self.link, _HELLO.size - len(self._hello))
        if len(self._hello) < _HELLO.size:
            return None
        magic, epoch, peer, number, theirs, proof = _HELLO.unpack(self._hello)
        connection, nonces = ConnectionId(peer, number), self._nonce + theirs
        expected = handshake.proof(b"caller", peer, handshake.rank, number, nonces)
        if magic != _MAGIC:
            raise ConnectionError("it does not speak this protocol")
        if not hmac.compare_digest(proof, expected):
            raise ConnectionError("it does not know the secret")
        if epoch != handshake.epoch or connection not in missing:
            raise ConnectionError("it is not expected, or is here already")
        self.link.sendall(handshake.proof(b"callee", peer, handshake.rank, number, nonces))
        self.link.setblocking(True)
        return connection


class Entrance:
    """Lets the connections in that are expected, each once, many at a time; for one thread.

    Strangers are sent away, with a warning in the log, twenty one by one, the rest as a number.

    Args:
        handshake: Who this rank is, and what the others must know.
        listener: Where they connect to; not closed here.
        expected: Which of them.
    """

    def __init__(
        self, handshake: Handshake, listener: socket.socket, expected: Sequence[ConnectionId]
    ) -> None:
        self._handshake = handshake
        self._listener = listener
        self._missing = list(expected)
        self._most_guests = len(expected) + _MOST_STRANGERS
        self._guests: deque[_Guest] = deque()
        self._refused = 0
        self._selector = selectors.DefaultSelector()

    def wait(self, links: dict[ConnectionId, socket.socket], end_s: float) -> None:
        """Wait for every expected connection; once.

        Args:
            links: Gets a blocking socket for each, as it comes, to be closed by the caller.
            end_s: Until when, on `time.monotonic`.

        Raises:
            Timeout: Some did not come in time; it names their ranks.
        """
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while self._missing:
                self._receive_guests(links, end_s)
        finally:
            while self._guests:
                self._refuse(self._guests[0], _SAID_NOTHING)
            self._selector.close()
            if self._refused > _MOST_LOGGED:
                more = self._refused - _MOST_LOGGED
                _log.warning("rank %d refused %d more connections", self._handshake.rank, more)

    def _receive_guests(self, links: dict[ConnectionId, socket.socket], end_s: float) -> None:
        if time.monotonic() >= end_s:
            ranks = sorted({peer for peer, _ in self._missing})
            names = ", ".join(map(str, ranks))
            raise Timeout(tuple(ranks), f"ranks {names} did not connect in time")
        for key, _ in self._selector.select(time_left(end_s)):
            if key.data is None:
                self._open()
            elif key.data in self._guests:
                self._hear(key.data, links)

    def _open(self) -> None:
        """Let one more speak; who has waited longest must go if there are too many."""
        if len(self._guests) >= self._most_guests:
            if time.monotonic() - self._guests[0].since_s < _PATIENCE_S:
                time.sleep(0.01)  # a flood must not wash out a rank that is about to speak
                return
            self._refuse(self._guests[0], _SAID_NOTHING)
        with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone already
            link, address = self._listener.accept()
            try:
                guest = _Guest(link, address)
            except OSError:
                link.close()
                return
            self._guests.append(guest)
            self._selector.register(link, selectors.EVENT_READ, guest)

    def _hear(self, guest: _Guest, links: dict[ConnectionId, socket.socket]) -> None:
        try:
            connection = guest.listen(self._handshake, self._missing)
        except OSError as error:
            self._refuse(guest, error.strerror or str(error))
            return
        if connection is not None:
            self._missing.remove(connection)
            links[connection] = self._part_with(guest)

    def _refuse(self, guest: _Guest, why: str) -> None:
        self._part_with(guest).close()
        self._refused += 1
        if self._refused <= _MOST_LOGGED:
            rank, whose = self._handshake.rank, guest.address
            _log.warning("rank %d refused a connection from %s: %s", rank, whose, why)

    def _part_with(self, guest: _Guest) -> socket.socket:
        self._selector.unregister(guest.link)
        self._guests.remove(guest)
        return guest.link


def time_left(end_s: float) -> float:
    """Return a timeout in seconds, never zero, that ends at a time of `time.monotonic`."""
    return max(0.001, end_s - time.monotonic())


def _receive(link: socket.socket, size: int, end_s: float) -> bytes:
    data = b""
    while len(data) < size:
        link.settimeout(time_left(end_s))
        data += _part(link, size - len(data))
    return data


def _part(link: socket.socket, size: int) -> bytes:
    part = link.recv(size)
    if not part:
        raise ConnectionError("it hung up")
    return part
