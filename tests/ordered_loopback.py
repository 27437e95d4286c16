"""A stand-in for ordered transports: exchanges match by the order of their launch, as in NCCL."""

from __future__ import annotations

from functools import partial

import torch

from compressa.collectives import Exchange, Operation
from compressa.transports.base import Done, Key
from compressa.transports.loopback import Loopback, LoopbackTransport


class OrderedLoopback(Loopback):
    """The k-th exchange of each rank meets the k-th of the others, whatever it is for.

    Attributes:
        launched: By rank, the keys in the order of their launch.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.transports: list[LoopbackTransport] = [_Ordered(self, r) for r in range(size)]
        self.launched: list[list[Key]] = [[] for _ in range(size)]
        self._posted: list[list[tuple[Exchange, Done]]] = [[] for _ in range(size)]

    def post(self, rank: int, key: Key, exchange: Exchange, done: Done) -> None:
        """Launch; what is complete on all ranks is carried out."""
        self.launched[rank].append(key)
        self._posted[rank].append((exchange, done))
        number = len(self._posted[rank]) - 1
        if all(len(posted) > number for posted in self._posted):
            self._meet([posted[number] for posted in self._posted])

    def _meet(self, launches: list[tuple[Exchange, Done]]) -> None:
        sent = [{p: b.clone() for p, b in e.outgoing.items()} for e, _ in launches]
        for rank, (exchange, done) in enumerate(launches):
            received: dict[int, torch.Tensor] = {}
            for peer, buffer in exchange.incoming.items():
                message = sent[peer][rank]
                length = min(message.numel(), buffer.numel())
                buffer[:length] = message[:length]
                received[peer] = buffer if exchange.exact else buffer[:length]
            self.clock.at(self.clock.now_s, partial(done, received))


class _Ordered(LoopbackTransport):
    def __init__(self, world: OrderedLoopback, rank: int) -> None:
        super().__init__(world, rank)
        self._meeting = world

    def ordered(self, operation: Operation) -> bool:
        return True

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        self._meeting.post(self.rank, key, exchange, done)
