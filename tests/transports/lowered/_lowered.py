"""Loops of several ranks in one process, joined by sockets, each driven by a thread."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from compressa.collectives.algorithms import ALGORITHMS, AllReduce, segmented
from compressa.collectives.base import Exchange
from compressa.collectives.lowering import Table, lowered
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.region import Region
from compressa.errors import CompressaError
from compressa.transports.base import Key, Received
from compressa.transports.checks import Keys
from compressa.transports.frames import Frame, Kind
from compressa.transports.lowered.loop import Loop
from compressa.transports.lowered.program import LoweredProgram
from compressa.transports.settings import Settings

EPOCH, CHUNK_BYTES, EARLY_BYTES = 7, 1 << 12, 1 << 20
KEY = Key(2, 5, 0)
PATIENCE_S = 20.0


def frame(data: bytes, key: Key = KEY, **fields: int) -> bytes:
    """A frame of a whole message, but for what is given."""
    sizes = {"message_bytes": len(data), "offset_bytes": 0, "data_bytes": len(data), **fields}
    kind = Kind(sizes.pop("kind", Kind.DATA))
    made = Frame(kind, sizes.pop("epoch", EPOCH), key, **sizes)
    return bytes(made.pack(memoryview(data))) + data


def table_of(name: str, rank: int, size: int, values: torch.Tensor, segments: int = 1) -> Table:
    """Lower an algorithm for some values."""
    all_reduce: AllReduce = segmented(ALGORITHMS[name], segments)
    return lowered(all_reduce, values.numel(), values.itemsize, RankGroup.everyone(rank, size))


class End:
    """One rank's loop, and what it has reported."""

    def __init__(
        self, rank: int, sockets: Mapping[int, Sequence[socket.socket]], **how: Any
    ) -> None:
        early_bytes = how.pop("early_bytes", EARLY_BYTES)
        if secret := how.pop("secret", None):
            how["keys"] = Keys(rank, secret)
        sizes = {"epoch": EPOCH, "chunk_bytes": CHUNK_BYTES, "credit_bytes": 2 * CHUNK_BYTES}
        settings = Settings(**{**sizes, "silence_s": 10.0, **how})
        self.failures: list[CompressaError] = []
        self.rank, self.size = rank, len(sockets) + 1
        self.loop = Loop(rank, sockets, settings, early_bytes, self.failures.append)
        self._waker, self._wakes = socket.socketpair()
        self.done: list[Key] = []

    def program(self, name: str, values: torch.Tensor, segments: int = 1) -> LoweredProgram:
        """Lower an algorithm for this rank."""
        table = table_of(name, self.rank, self.size, values, segments)
        program = self.loop.program(table, values.dtype)
        assert program is not None
        return program

    def start(
        self,
        program: LoweredProgram,
        values: torch.Tensor | Region,
        key: Key,
        priority: int = 0,
        divisor: int = 1,
    ) -> None:
        """Begin a program."""
        done = self.done.append
        assert self.loop.start(program, values, divisor, key, 1, priority, lambda: done(key))

    def exchange(self, key: Key, exchange: Exchange, priority: int = 0) -> Received:
        """Begin an exchange; return what it will have received when it is done."""
        received: Received = {}

        def over(result: Received | CompressaError) -> None:
            assert not isinstance(result, CompressaError)
            received.update(result)
            self.done.append(key)

        assert self.loop.exchange(key, exchange, priority, over)
        return received

    def until(self, count: int) -> None:
        """Drive until so many programs are done, or something has failed."""
        end_s = time.monotonic() + PATIENCE_S
        while len(self.done) < count and not self.failures and time.monotonic() < end_s:
            self.loop.wait(self._wakes.fileno(), 0.05)

    def sum(
        self, program: LoweredProgram, values: torch.Tensor | Region, key: Key, divisor: int = 1
    ) -> None:
        """Begin a program and drive to its end."""
        self.start(program, values, key, divisor=divisor)
        self.until(len(self.done) + 1)

    def close(self) -> None:
        """End it."""
        self.loop.close()
        self._waker.close()
        self._wakes.close()


@contextmanager
def ends(size: int, stripes: int = 1, **how: Any) -> Iterator[list[End]]:
    """Yield the loops of so many ranks, with so many connections between each two."""
    sockets: list[dict[int, list[socket.socket]]] = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a):
            pairs = [socket.socketpair() for _ in range(stripes)]
            sockets[a][b], sockets[b][a] = [list(ends) for ends in zip(*pairs, strict=True)]
    made = [End(rank, links, **how) for rank, links in enumerate(sockets)]
    try:
        yield made
    finally:
        for end in made:
            end.close()


def side_by_side(calls: Sequence[Any]) -> None:
    """Call functions on a thread each; raise what one of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(2 * PATIENCE_S)
