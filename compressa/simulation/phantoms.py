"""Phantoms: what an aggregator exchanges, without its data.

A unit's program here asks for the same rounds as its aggregator, so that the real collectives carry
them: through the same exchanges, of the same sizes, with the same computing in between. Tensors
have a size only. Codecs whose payloads vary in length send the longest that they may.

A profile knows how long each unit's codec computes in all, on as many ranks as there were. Shared
out to the bytes that were made and worked on, it says what other numbers of ranks take.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from compressa.aggregators.base import (
    AllGather,
    AllReduce,
    Broadcast,
    Neighbours,
    Request,
    Round,
    Verb,
    World,
)
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Compute, Exchange, Program, SideBySide
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.digraphs import Digraph
from compressa.collectives.scratch import Scratch
from compressa.engine.units.sums import Sums
from compressa.schedulers import UnitTimes

META = torch.device("meta")

Rates = Mapping[str, float]
"""By stage, "encode" and "decode": seconds for each byte."""

_ALIGN_BYTES = 64
_QUICK_BYTES = 1 << 17
_QUICK_PLAIN_BYTES = 1 << 19  # as of the plain sums


@dataclass(frozen=True)
class Work(Compute):
    """Computing whose size is known beforehand.

    Attributes:
        load_bytes: Of payloads that are made, or worked on.
    """

    load_bytes: int = 0


@lru_cache(maxsize=1 << 14)
def room(size_bytes: int) -> torch.Tensor:
    """Return uint8[size_bytes] without memory, on the device meta; the same for each size."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=META)


class _NoScratch(Scratch):
    """Room without memory."""

    def __init__(self) -> None:
        super().__init__(META)

    def room(self, name: Hashable, size_bytes: int) -> torch.Tensor:
        """Return as much."""
        return room(size_bytes)

    def part(self, number: int) -> Scratch:
        """There is nothing to part."""
        return self


def phantom_program(rounds: Sequence[Round], world: World, sums: Sums) -> Program[None]:
    """Run one unit for one step; see `compressa.engine.units.unit_runtime.UnitRuntime.program`.

    Args:
        rounds: Its aggregator's.
        world: Where it runs: rank and size count only.
        sums: Carries the exchanges.
    """
    yield Work(_nothing, "encode", load_bytes=sum(each.capacity_bytes for each in rounds))
    for round_ in rounds:
        yield from sums.run(phantom_request(round_, world), round_)
        # A sum has been decoded on the way, and each rank goes on with what it holds.
        payloads = world.size if round_.verb is Verb.ALL_GATHER else 1
        yield Work(_nothing, "decode", load_bytes=payloads * round_.capacity_bytes)


def _nothing() -> None:
    """Take time only."""


def phantom_request(round_: Round, world: World) -> Request:
    """Return what an aggregator would ask for in a round.

    Args:
        round_: The round.
        world: Where: rank and size count only.
    """
    size = round_.capacity_bytes
    if round_.verb is Verb.ALL_GATHER:
        incoming = {peer: room(size) for peer in world.peers}
        return AllGather(room(size), incoming, _NoScratch())
    if round_.verb is Verb.BROADCAST:
        return Broadcast(room(size), 0)
    if round_.verb is Verb.NEIGHBOURS:
        hears, tells = _neighbours_of(world, round_.peers)
        return Neighbours(room(size), {peer: room(size) for peer in hears}, tells)
    inside = None
    if round_.inside_bytes is not None:
        inside = PhantomValues(round_, round_.inside_bytes)
    return AllReduce(PhantomValues(round_, size), _NoScratch(), inside)


def _neighbours_of(world: World, peers: int) -> tuple[Collection[int], Collection[int]]:
    """Return of whom a rank hears, and whom it tells; those of the first meeting stand for all."""
    graph = world.graph
    if isinstance(graph, Digraph):
        return graph.senders(world.rank, 0), graph.receivers(world.rank, 0)
    both = world.peers[:peers] if graph is None else graph.neighbours(world.rank)
    return both, both


class PhantomValues(Accumulator):
    """An accumulator of which an element stands for a byte of a message.

    Args:
        round_: In which it is summed.
        size_bytes: Of a message of everything, across hosts or within them.
    """

    align_elems = _ALIGN_BYTES

    def __init__(self, round_: Round, size_bytes: int) -> None:
        self._round = round_
        self._elems = round_.capacity_bytes
        self._size_bytes = size_bytes
        self._plain = round_.dtype is not torch.uint8
        self.span = Span(0, self._elems)
        # Plain values are ready, and so are payloads that are made before a sum begins.
        self.ready = self._plain or round_.algorithm == ROUND_ROBIN

    @property
    def dense(self) -> torch.Tensor | None:
        """Memory of so many bytes, if the round is of plain values."""
        return room(self._elems).view(self._round.dtype) if self._round.dense else None

    def cut(self, span: Span, parts: int) -> tuple[Span, ...]:
        """Into the shards that the round names, or nearly equal parts."""
        if not self._round.shard_bytes:
            return super().cut(span, parts)
        edges = itertools.accumulate(self._round.shard_bytes, initial=0)
        return tuple(itertools.starmap(Span, itertools.pairwise(edges)))

    def capacity_bytes(self, span: Span) -> int:
        """Its share of the bytes of everything, rounded up."""
        if self._size_bytes == self._elems:
            return span.elems
        return -(-span.elems * self._size_bytes // self._elems)

    def quick(self, elems: int) -> bool:
        """If there are few; to encode them takes longer than to add them."""
        return elems <= (_QUICK_PLAIN_BYTES if self._plain else _QUICK_BYTES)

    def landing(self, span: Span) -> torch.Tensor | None:
        """The values' memory; payloads have to be decoded."""
        return room(self.capacity_bytes(span)) if self._plain else None

    def give(self, span: Span) -> torch.Tensor:
        """Return uint8[capacity_bytes(span)] on the device meta: the length of a message alone."""
        return room(self.capacity_bytes(span))

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Return what `give` returns, whoever the author is."""
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """There is nothing to add."""

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """There is nothing to hold."""


def load_of(operation: Compute, value: object, received_bytes: int) -> int:
    """Return how many bytes of payloads a computation makes, or works on.

    Args:
        operation: The computation.
        value: What it has returned.
        received_bytes: What has come in the exchange before it.
    """
    if isinstance(operation, Work):
        return operation.load_bytes
    if operation.stage == "decode":
        return received_bytes
    messages = value.values() if isinstance(value, Mapping) else [value]
    return sum(m.numel() for m in messages if isinstance(m, torch.Tensor))


def rates_of(rounds: Sequence[Round], times: UnitTimes, world: World, sums: Sums) -> Rates:
    """Return what each byte takes of a unit with these times.

    Args:
        rounds: The unit's.
        times: As measured.
        world: On how many ranks.
        sums: What carried it there.
    """
    loads = loads_of(phantom_program(rounds, world, sums))
    seconds = {"encode": times.encode_s, "decode": times.decode_s}
    return {stage: seconds[stage] / loads[stage] if loads[stage] else 0.0 for stage in seconds}


def loads_of(program: Program[None]) -> Counter[str]:
    """Run a program to its end, with whatever it wants; return the bytes of each stage."""
    loads: Counter[str] = Counter()
    received_bytes, answer = 0, None
    while True:
        try:
            operation = program.send(answer)
        except StopIteration:
            return loads
        answer = None
        if isinstance(operation, SideBySide):
            for part in operation.programs:
                loads += loads_of(part)
        elif isinstance(operation, Compute):
            answer = made(operation)
            loads[operation.stage] += load_of(operation, answer, received_bytes)
        elif isinstance(operation, Exchange):
            answer = dict(operation.incoming)
            received_bytes = sum(buffer.numel() for buffer in answer.values())


def made(operation: Compute) -> Any:
    """Return what a computation makes: messages, if it encodes."""
    return operation.work() if operation.stage == "encode" else None
