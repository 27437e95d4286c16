"""Lowering: a collective's program as a table of hops, worked out once per layout.

The program itself is run, on values that have a size and no memory. What it asks for is noted: what
each exchange sends and receives, and what is added to what. Nothing of that depends on values, so a
table is all that a step needs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Compute, Exchange, Program, SideBySide
from compressa.collectives.scratch import Scratch

VALUES, SCRATCH = 0, 1
DIVIDED = (torch.float32, torch.float64)
"""Dtypes of values that whoever runs a table can divide."""

_NOWHERE = torch.device("meta")
_ALIGN_BYTES = 64


class Extent(NamedTuple):
    """Bytes that follow each other, in the values or in the memory for what comes in.

    Attributes:
        region: `VALUES` or `SCRATCH`.
        offset_bytes: Where the first one is.
        size_bytes: How many they are.
    """

    region: int
    offset_bytes: int
    size_bytes: int

    def overlaps(self, other: Extent) -> bool:
        """Whether any byte is in both."""
        low, high = sorted((self, other), key=lambda extent: extent.offset_bytes)
        return self.region == other.region and low.stop_bytes > high.offset_bytes

    @property
    def stop_bytes(self) -> int:
        """Where the first byte behind them is."""
        return self.offset_bytes + self.size_bytes


class Addition(NamedTuple):
    """What is added to what, in place."""

    to: Extent
    source: Extent


@dataclass
class HopTable:
    """One hop of a chain.

    Attributes:
        stage: Number of its exchange within the program.
        sends: By peer, what it is sent.
        receives: By peer, where what it sends goes.
        additions: What is added afterwards, in this order.
    """

    stage: int
    sends: dict[int, Extent]
    receives: dict[int, Extent]
    additions: list[Addition] = field(default_factory=list)

    def fused(self, peer: int) -> Extent | None:
        """Return what a message can be added to as it comes, frame by frame, if it can.

        It must be all that is added there, and nothing of it may still have to be sent.
        """
        if len(self.additions) != 1:
            return None
        to, source = self.additions[0]
        sent = any(extent.overlaps(to) for extent in self.sends.values())
        return None if sent or self.receives[peer] != source else to


@dataclass
class Table:
    """A program, lowered.

    Attributes:
        chains: Hops one after another; chains go side by side.
        parts: What each chain sums, of the values.
        exchanges: How many it asks for, of all chains together.
        scratch_bytes: Of the memory for what comes in.
    """

    chains: list[list[HopTable]]
    parts: list[Extent]
    exchanges: int
    scratch_bytes: int

    @cached_property
    def hops(self) -> list[HopTable]:
        """Those of all chains."""
        return [hop for chain in self.chains for hop in chain]

    @cached_property
    def sent_bytes(self) -> int:
        """What this rank sends."""
        return sum(extent.size_bytes for hop in self.hops for extent in hop.sends.values())

    @cached_property
    def peers(self) -> int:
        """With how many ranks it exchanges."""
        return len({peer for hop in self.hops for peer in (*hop.sends, *hop.receives)})


class _Recorder(Accumulator):
    """Values that have a size and no memory, and note what is added to them."""

    align_elems = 16
    ready = True

    def __init__(self, elems: int, item_bytes: int) -> None:
        self.span = Span(0, elems)
        self._item_bytes = item_bytes
        self.memory = torch.empty(elems * item_bytes, dtype=torch.uint8, device=_NOWHERE)
        self.noted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def capacity_bytes(self, span: Span) -> int:
        return span.elems * self._item_bytes

    def quick(self, elems: int) -> bool:
        return True

    def give(self, span: Span) -> torch.Tensor:
        return self.memory[span.start * self._item_bytes : span.stop * self._item_bytes]

    def share(self, span: Span, author: Author) -> torch.Tensor:
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        own = self.give(span)
        if before:
            self.noted += [(before[0], message) for message in before[1:]]
            self.noted.append((own, before[0]))
        self.noted += [(own, message) for message in after]

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        raise NotImplementedError("results land where they belong")

    def landing(self, span: Span) -> torch.Tensor:
        return self.give(span)


class _Lowering:
    """Runs programs, and notes their hops."""

    def __init__(self, values: _Recorder) -> None:
        self._values = values
        self._regions: dict[Any, int] = {}  # by storage of scratch, where it begins
        self.scratch_bytes = 0
        self.chains: list[list[HopTable]] = []
        self.exchanges = 0

    def run(self, program: Program[Any]) -> None:
        """Note a whole program: one chain, or several side by side."""
        first = next(program)
        if not isinstance(first, SideBySide):
            self._chain(program, first, 0, 1)
            return
        count = len(first.programs)
        for index, part in enumerate(first.programs):
            self._chain(part, next(part, None), index, count)
        self._end(program)

    def _chain(self, program: Program[Any], operation: Any, stage: int, stride: int) -> None:
        hops: list[HopTable] = []
        while operation is not None:
            answer: Any = None
            if isinstance(operation, Exchange):
                sends = {p: self._extent(m) for p, m in operation.outgoing.items() if m.numel()}
                receives = {p: self._extent(m) for p, m in operation.incoming.items() if m.numel()}
                hops.append(HopTable(stage, sends, receives))
                stage += stride
                self.exchanges += 1
                answer = dict(operation.incoming)
            elif isinstance(operation, Compute):
                answer = operation.work()
                noted, self._values.noted = self._values.noted, []
                hops[-1].additions += [
                    Addition(self._extent(to), self._extent(source))
                    for to, source in noted
                    if to.numel()
                ]
            else:
                raise NotImplementedError(f"{operation!r} can not be lowered")
            operation = self._next(program, answer)
        self.chains.append(hops)

    @staticmethod
    def _next(program: Program[Any], answer: Any) -> Any:
        try:
            return program.send(answer)
        except StopIteration:
            return None

    def _end(self, program: Generator[Any, Any, Any]) -> None:
        if self._next(program, None) is not None:
            raise NotImplementedError("nothing follows on programs side by side")

    def _extent(self, memory: torch.Tensor) -> Extent:
        storage = memory.untyped_storage()
        if storage._cdata == self._values.memory.untyped_storage()._cdata:
            return Extent(VALUES, int(memory.storage_offset()), memory.numel())
        begin = self._regions.get(storage._cdata)
        if begin is None:
            begin = self._regions[storage._cdata] = self.scratch_bytes
            self.scratch_bytes += -(-storage.nbytes() // _ALIGN_BYTES) * _ALIGN_BYTES
        return Extent(SCRATCH, begin + int(memory.storage_offset()), memory.numel())


def lowered_hops(hops: Sequence[HopTable], size_bytes: int, scratch_bytes: int) -> Table:
    """Return a table of hops one after another, which add nothing.

    Args:
        hops: With stages from 0 on.
        size_bytes: Of the values.
        scratch_bytes: Of the memory for what comes in.
    """
    whole = Extent(VALUES, 0, size_bytes)
    return Table([list(hops)], [whole], len(hops), scratch_bytes)


def lowered(all_reduce: Any, elems: int, item_bytes: int, group: Any) -> Table:
    """Lower an all-reduce of plain values.

    Args:
        all_reduce: See `compressa.collectives.algorithms.AllReduce`.
        elems: Of the values.
        item_bytes: Of each.
        group: Who takes part, and which of them this rank is.

    Returns:
        Its table, of which nothing depends on values.
    """
    values, scratch = _Recorder(elems, item_bytes), Scratch(_NOWHERE)
    lowering = _Lowering(values)
    lowering.run(all_reduce(values, values.span, group, scratch))
    cuts = values.cut(values.span, len(lowering.chains))
    parts = [Extent(VALUES, cut.start * item_bytes, cut.elems * item_bytes) for cut in cuts]
    return Table(lowering.chains, parts, lowering.exchanges, lowering.scratch_bytes)
