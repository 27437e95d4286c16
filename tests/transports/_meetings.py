"""Ranks that meet on threads, and who else may knock or listen."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

from compressa.transports import handshake
from compressa.transports.rendezvous import connect_mesh

EPOCH = 6
DEADLINE_S = 20.0
HELLO = handshake._HELLO
MAGIC = handshake._MAGIC
NONCE = b"n" * handshake._NONCE_BYTES
Seats = list[dict[str, Any]]
Links = dict[int, list[socket.socket]]


class Meeting:
    """Ranks on threads.

    Args:
        size: Number of ranks.
        before: Called with all that the ranks said of themselves, before any of them knows it.
        beside: As `before`, on a thread that has ended when the meeting has.
        said: What some ranks say instead of what they would; they do not take part otherwise.
        connections: How many between every two ranks.
    """

    def __init__(
        self,
        size: int,
        before: Callable[[Seats], None] | None = None,
        beside: Callable[[Seats], None] | None = None,
        said: dict[int, bytes] | None = None,
        connections: int = 1,
    ) -> None:
        self.size, self.connections = size, connections
        self.before, self.beside = before, beside
        self.absent = said or {}
        self._threads: list[threading.Thread] = []
        self._texts: dict[int, bytes] = dict(self.absent)
        self._met = threading.Barrier(size - len(self.absent), self._tell)

    def hold(self, deadline_s: float = DEADLINE_S) -> dict[int, Future[Links]]:
        """Have all present ranks meet; return what became of them."""
        present = [rank for rank in range(self.size) if rank not in self.absent]
        with ThreadPoolExecutor(len(present)) as pool:
            outcomes = {rank: pool.submit(self._attend, rank, deadline_s) for rank in present}
        for thread in self._threads:
            thread.join(5.0)
        return outcomes

    def _attend(self, rank: int, deadline_s: float) -> Links:
        def all_gather(data: bytes, what: str, within_s: float) -> list[bytes]:
            assert what == "addresses"
            self._texts[rank] = data
            self._met.wait(within_s)
            return [self._texts[r] for r in range(self.size)]

        return connect_mesh(rank, self.size, EPOCH, all_gather, deadline_s, self.connections)

    def _tell(self) -> None:
        if self.before is not None:
            self.before(self._seats())
        if self.beside is not None:
            self._threads.append(threading.Thread(target=self.beside, args=(self._seats(),)))
            self._threads[0].start()

    def _seats(self) -> Seats:
        return [json.loads(self._texts[rank]) for rank in range(self.size)]


def knock(seat: dict[str, Any]) -> socket.socket:
    return socket.create_connection((seat["address"], seat["port"]), 5.0)


@contextlib.contextmanager
def somebody_else(serve: Callable[[socket.socket], None] | None) -> Iterator[bytes]:
    """Somebody listens in a rank's place; what the rank says of itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seat = {"address": "127.0.0.1", "port": listener.getsockname()[1], "secret": ""}

        def accept() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                serve(link) if serve else None

        thread = threading.Thread(target=accept)
        if serve:
            thread.start()
        yield json.dumps(seat).encode()
        if serve:
            thread.join(5.0)


def failures(outcomes: dict[int, Future[Links]]) -> dict[int, BaseException]:
    """Return the errors of those who failed; close the links of the others."""
    found = {}
    for rank, future in outcomes.items():
        error = future.exception()
        if error is None:
            for link in chain(*future.result().values()):
                link.close()
        else:
            found[rank] = error
    return found
