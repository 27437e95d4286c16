"""A transport as somebody else would write one: it hands everything on to TCP's, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from _training import train

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError
from compressa.transports.base import Done, Key, Traffic, Transport
from compressa.transports.reactor import Reactor
from compressa.transports.setup import Setup
from compressa.transports.table import TRANSPORTS, Entry
from compressa.transports.tcp import open_tcp

ROW = Entry("counted", "as tcp, and counts", "_counted_transport:open_counted", paced=True)

_opened: list[Counted] = []


class Counted(Transport):
    def __init__(self, inner: Transport) -> None:
        self.rank, self.size, self.epoch = inner.rank, inner.size, inner.epoch
        self.exchanges = 0
        self._inner = inner

    def attach(self, reactor: Reactor) -> None:
        self._inner.attach(reactor)

    def ordered(self, operation: Operation) -> bool:
        return self._inner.ordered(operation)

    @property
    def sums(self) -> bool:
        return self._inner.sums

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        self.exchanges += 1
        self._inner.exchange(key, exchange, priority, done)

    def batched(self) -> AbstractContextManager[None]:
        return self._inner.batched()

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        self._inner.all_reduce(operation, done)

    def missing(self, key: Key) -> Sequence[int]:
        return self._inner.missing(key)

    @property
    def traffic(self) -> Traffic:
        return self._inner.traffic

    def fail(self, error: CompressaError) -> None:
        self._inner.fail(error)

    def close(self, timeout_s: float) -> None:
        self._inner.close(timeout_s)


def open_counted(setup: Setup) -> Counted:
    _opened.append(Counted(open_tcp(setup)))
    return _opened[-1]


def train_over_it(**options: Any) -> dict[str, Any]:
    """Add the row, train, and count; run on every rank."""
    assert dist.is_initialized()
    TRANSPORTS[ROW.name] = ROW
    try:
        return {**train(**options), "exchanges": sum(one.exchanges for one in _opened)}
    finally:
        del TRANSPORTS[ROW.name]
        _opened.clear()
