"""Phantoms: what an aggregator exchanges, without its data.

A unit's program here asks for the same rounds as its aggregator, so that the real collectives carry
them: through the same exchanges, of the same sizes, with the same computing in between. Tensors
have a size only. Codecs whose payloads vary in length send the longest that they may.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from compressa.aggregators.base import (
    AllGather,
    AllReduce,
    Broadcast,
    Request,
    Round,
    Sum,
    Verb,
    World,
)
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Combine, Compute, Program
from compressa.collectives.combine import shard_edges
from compressa.collectives.scratch import Scratch
from compressa.engine.sums import Sums

META = torch.device("meta")

_ALIGN_BYTES = 64
_QUICK_BYTES = 1 << 17  # as of the plain sums
_QUICK_IN_PLACE_BYTES = 1 << 19
_WHOLE = ("backend", "direct")


@dataclass(frozen=True)
class Work(Compute):
    """Computing whose size is known beforehand.

    Attributes:
        load_bytes: Of payloads that are made, or worked on.
    """

    load_bytes: int = 0


@lru_cache(maxsize=1 << 14)
def room(size_bytes: int) -> torch.Tensor:
    """Return so many bytes that take no memory."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=META)


class _NoScratch(Scratch):
    """Room without memory."""

    def __init__(self) -> None:
        super().__init__(META)

    def room(self, name: Hashable, size_bytes: int) -> torch.Tensor:
        """Return as much."""
        return room(size_bytes)


def phantom_program(rounds: Sequence[Round], world: World, sums: Sums) -> Program[None]:
    """Run one unit for one step; see `compressa.engine.programs.unit_program`.

    Args:
        rounds: Its aggregator's.
        world: Where it runs: rank and size count only.
        sums: Carries the exchanges.
    """
    yield Work(_nothing, "encode", load_bytes=sum(each.capacity_bytes for each in rounds))
    for round_ in rounds:
        yield from sums.carry(phantom_request(round_, world, sums), round_)
        # A sum has been decoded on the way, and each rank goes on with what it holds.
        payloads = world.size if round_.verb is Verb.ALL_GATHER else 1
        yield Work(_nothing, "decode", load_bytes=payloads * round_.capacity_bytes)


def _nothing() -> None:
    """Take time only."""


def phantom_request(round_: Round, world: World, sums: Sums) -> Request:
    """Return what an aggregator would ask for in a round."""
    size = round_.capacity_bytes
    if round_.verb is Verb.ALL_GATHER:
        incoming = {peer: room(size) for peer in world.peers}
        return AllGather(room(size), incoming, exact=True)
    if round_.verb is Verb.BROADCAST:
        return Broadcast(room(size), 0)
    if round_.verb is Verb.SUM:
        inside = None if round_.inside_bytes is None else PhantomValues(size, round_.inside_bytes)
        return Sum(PhantomValues(size, size), Span(0, size), _NoScratch(), inside)
    if round_.dense and sums.way(round_) not in _WHOLE and world.size > 1:
        values = PhantomValues(size, size, in_place=True)  # what `Sums` would make of plain ones
        return Sum(values, Span(0, size), _NoScratch())
    return AllReduce(PhantomCombine(round_, world), _NoScratch())


class PhantomValues(Accumulator):
    """An accumulator of which an element stands for a byte of a message.

    Args:
        elems: Bytes of a message of everything, across hosts.
        size_bytes: Bytes of such a message, within them.
        in_place: Whether messages are the values themselves, and no codec's.
    """

    def __init__(self, elems: int, size_bytes: int, *, in_place: bool = False) -> None:
        self._elems = elems
        self._size_bytes = size_bytes
        self._in_place = in_place

    @property
    def align_elems(self) -> int:
        """Of any size."""
        return _ALIGN_BYTES

    @property
    def exact(self) -> bool:
        """Always."""
        return True

    def capacity_bytes(self, span: Span) -> int:
        """Its share of all."""
        if self._size_bytes == self._elems:
            return span.elems
        return -(-span.elems * self._size_bytes // self._elems)

    @property
    def in_place(self) -> bool:
        """As given."""
        return self._in_place

    def quick(self, elems: int) -> bool:
        """If there are few; to encode them takes longer than to add them."""
        return elems <= (_QUICK_IN_PLACE_BYTES if self._in_place else _QUICK_BYTES)

    def landing(self, span: Span) -> torch.Tensor | None:
        """The values' place."""
        return room(self.capacity_bytes(span)) if self._in_place else None

    def give(self, span: Span) -> torch.Tensor:
        """As long a message."""
        return room(self.capacity_bytes(span))

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """The same."""
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """There is nothing to add."""

    def take(self, span: Span, message: torch.Tensor) -> None:
        """There is nothing to hold."""


class PhantomCombine(Combine):
    """A combine of shards.

    Args:
        round_: Of which round.
        world: Where it runs.
    """

    def __init__(self, round_: Round, world: World) -> None:
        self._dense = round_.dense
        self._values = torch.empty(
            round_.capacity_bytes // round_.dtype.itemsize, dtype=round_.dtype, device=META
        )
        self._edges = shard_edges(round_.capacity_bytes, world.size, _ALIGN_BYTES)
        if round_.shard_bytes:
            self._edges = [0, *itertools.accumulate(round_.shard_bytes)]

    def shard_bytes(self, shard: int) -> int:
        """Its share of all."""
        return self._edges[shard + 1] - self._edges[shard]

    def partial(self, shard: int) -> torch.Tensor:
        """As long a message."""
        return room(self.shard_bytes(shard))

    def reduce(self, shard: int, partials: Sequence[torch.Tensor | None]) -> None:
        """There is nothing to reduce."""

    def sealed(self, shard: int) -> torch.Tensor:
        """As long a message."""
        return self.partial(shard)

    def accept(self, shard: int, sealed: torch.Tensor) -> None:
        """There is nothing to hold."""

    @property
    def quick(self) -> bool:
        """If it is small."""
        return self._edges[-1] <= _QUICK_BYTES

    def landing(self, shard: int) -> torch.Tensor | None:
        """Plain values come to their place, payloads must be decoded."""
        return self.partial(shard) if self._dense else None

    @property
    def dense(self) -> torch.Tensor | None:
        """Plain values, if they are."""
        return self._values if self._dense else None


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
