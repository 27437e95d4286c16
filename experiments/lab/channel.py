"""JSON lines over a Unix socket between the driver and one rank.

A socket of its own, and not the standard streams: whatever a library prints can not be taken for
an answer. A Unix socket lives in the file system, so it also connects processes that are in
different network namespaces, and puts no byte on the interfaces whose counters are read.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from pydantic import BaseModel


class ChannelClosed(Exception):  # noqa: N818 - an event at least as much as an error
    """The other end went away."""


class Channel:
    """One connected socket; lines out, lines in, a deadline on every wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pending = b""

    @classmethod
    def connect(cls, path: Path) -> Channel:
        """Connects to the driver's listening socket at ``path``."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        return cls(connection)

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def send(self, message: BaseModel) -> None:
        """Sends one message as one line.

        Raises:
            ChannelClosed: If the other end is gone.
        """
        try:
            self._socket.sendall(message.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> str:
        """The next line, without its end.

        Raises:
            TimeoutError: If no whole line came within ``timeout_s``.
            ChannelClosed: If the other end is gone.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = None if deadline is None else max(0.001, deadline - time.monotonic())
            self._pending += self._read(left)
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def lines(self) -> list[str]:
        """Every whole line that is there, after one read; call when ``select`` says so."""
        self._pending += self._read(None)
        *whole, self._pending = self._pending.split(b"\n")
        return [line.decode() for line in whole]

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _read(self, timeout_s: float | None) -> bytes:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        finally:
            self._socket.settimeout(None)
        if not data:
            raise ChannelClosed("the other end closed the channel")
        return data
