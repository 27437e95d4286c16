"""Shared cells: a few bytes under a name, which processes that have nothing else in common change.

At file:///folder it is a file in a folder that all can write to, and is there only while it holds
something. At tcp://host:port it is a value in a TCPStore of torch's, which the first process that
runs on that host serves.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

from torch._C._distributed_c10d import TCPStore

from compressa.errors import TransportError

Change = Callable[[bytes], bytes]

_MOST_BYTES = 1 << 16
_WAIT_S = 2.0
_TRY_S = 0.0005
_MOST_TRIES = 1000
_MARK_BYTES = 8


class SharedCell(ABC):
    """Some bytes that several processes change."""

    @abstractmethod
    def change(self, change: Change) -> None:
        """Replace the bytes by what a function makes of them, which it may have to do again.

        Args:
            change: Takes any bytes, at most 64 KiB; returns ASCII.

        Raises:
            OSError: The cell cannot be reached.
            RuntimeError: Likewise.
            TransportError: Others are in the way for too long.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it; no `change` comes afterwards."""


@final
class FileCell(SharedCell):
    """A file; a lock on it goes with the process that dies.

    Args:
        path: Of the file, in a folder that all can write to; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        import fcntl  # there is none on Windows

        self._path = path
        self._flock = fcntl.flock
        self._take = fcntl.LOCK_EX | fcntl.LOCK_NB

    def change(self, change: Change) -> None:
        """Change it under a lock; no bytes, no file; see `SharedCell.change`.

        Raises:
            OSError: The folder can not be written to, or the path is a link.
            TransportError: Another process holds the lock for 2 s.
        """
        end_s = time.monotonic() + _WAIT_S
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._path, flags, 0o666)
            try:
                if self._changed(file, change):
                    return
            finally:
                os.close(file)
            if time.monotonic() > end_s:
                raise TransportError(f"{self._path} is locked by another process for too long")
            time.sleep(_TRY_S)

    def _changed(self, file: int, change: Change) -> bool:
        try:
            self._flock(file, self._take)
        except BlockingIOError:
            return False
        if not os.fstat(file).st_nlink:
            return False  # whoever had the lock before has removed it
        before = os.pread(file, _MOST_BYTES, 0)
        after = change(before)
        if not after:
            os.unlink(self._path)
        elif after != before:
            os.pwrite(file, after, 0)
            os.ftruncate(file, len(after))
        return True

    def close(self) -> None:
        """Do nothing: the file is closed after each change."""


@final
class StoreCell(SharedCell):
    """A value in a TCPStore, which the first process on its host serves.

    Args:
        host: Whose store it is.
        port: Where it listens.
        key: Of the value.

    Raises:
        OSError: Nobody serves it, and it is not for this host to do so.
        RuntimeError: Likewise.
    """

    def __init__(self, host: str, port: int, key: str) -> None:
        self._key = f"compressa/{key}"
        self._known = b""
        timeout = timedelta(seconds=_WAIT_S)
        served = None
        if _is_here(host):
            with contextlib.suppress(RuntimeError):  # somebody else serves it
                served = TCPStore(
                    host, port, is_master=True, wait_for_workers=False, timeout=timeout
                )
        if served is None:
            socket.create_connection((host, port), _WAIT_S).close()  # torch would try for longer
            served = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        self._store: TCPStore | None = served

    def change(self, change: Change) -> None:
        """Change it unless somebody else has done so meanwhile; then try again.

        Raises:
            RuntimeError: The store does not answer.
            TransportError: Others have changed it a thousand times meanwhile.
        """
        assert self._store is not None, "the cell is closed"
        for _ in range(_MOST_TRIES):
            # Two who write the same bytes must not both take the other's for their own.
            after = secrets.token_hex(_MARK_BYTES).encode() + change(self._known[2 * _MARK_BYTES :])
            found = self._store.compare_set(self._key, self._known.decode(), after.decode())
            if found == after:
                self._known = after
                return
            if not found.isascii():
                self._store.delete_key(self._key)  # no job has written that
            known = found.isascii() and found != self._known  # else the store has nothing
            self._known = found if known else b""
        raise TransportError(f"the value {self._key} changes all the time")

    def close(self) -> None:
        """Close the connection, and the store if it is served here."""
        self._store = None


def open_cell(at: str, name: str) -> SharedCell:
    """Open a cell; waits 2 s at most for whoever serves it.

    Args:
        at: Where: "file:///folder" or "tcp://host:port".
        name: Which one there.

    Raises:
        OSError: It cannot be reached.
        RuntimeError: Likewise.
    """
    url = urlsplit(at)
    if url.scheme == "file":
        return FileCell(Path(url.path) / f"{name}.line")
    assert url.hostname is not None, "the configuration has been checked"
    assert url.port is not None
    return StoreCell(url.hostname, url.port, name)


def _is_here(host: str) -> bool:
    """Whether a name is one of this host's own addresses."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False
