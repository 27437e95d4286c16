"""Split and reduce: each rank's selection goes to the owners of regions, which sum it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from compressa.aggregators.base import World
from compressa.aggregators.oktopk_state import KNOTS, Due, ScopeState, between
from compressa.aggregators.owned_sum import ScopeSum
from compressa.aggregators.sparse_messages import Entries, Reader, Writer
from compressa.codecs._sparse import F32, U32
from compressa.errors import PayloadError
from compressa.kernels.feedback import all_finite
from compressa.kernels.scratch import scratch
from compressa.kernels.select import select_above
from compressa.kernels.topk import scatter_add

_NOT_FINITE = 2**32 - 1
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@dataclass(frozen=True)
class Summary:
    """What an owner tells of its sums, and a rank of its selection.

    Attributes:
        count: How many sums reach the threshold, or, where that is due, how many magnitudes of the
            largest ones are told; None if they, or anything that the rank has, are not finite.
        knots: uint32[KNOTS - 1], where regions are due: its selection, cut into parts of equal
            count.
    """

    count: int | None
    knots: U32


class Split(ScopeSum):
    """One scope's.

    Args:
        state: What the scope keeps.
        due: What is estimated in this step.
        world: This rank, and how many there are.
        finite: Whether all is that this rank has.
        held: Whether it has to wait.

    Attributes:
        due: As given.
        regions: By owner.
        sent: How many elements this rank has sent: the first of `state.selected`.
        sums: The largest sums of the own region, those that reach the threshold if it is known.
        told: By rank, what it tells; complete when the split is done.
    """

    def __init__(
        self, state: ScopeState, due: Due, world: World, *, finite: bool, held: bool
    ) -> None:
        self.due = due
        self.regions = state.regions()
        self.sums = state.sums.part(0, 0)
        self.told: dict[int, Summary] = {}
        self._state, self._rank, self._finite = state, world.rank, finite
        waits = held or not finite
        selected = state.selected.part(0, 0) if waits else state.select(due)
        self._knots = self._knots_of(selected.indices)
        self._cuts = self._cut(selected)
        self.sent = self._cuts[-1]
        divided = torch.from_numpy(state.shares.values[: self.sent])
        world.divide(torch.from_numpy(state.selected.values[: self.sent]), out=divided)
        state.shares.indices[: self.sent] = state.selected.indices[: self.sent]

    def give(self, writer: Writer, owner: int) -> None:
        """The selection in the owner's region."""
        writer.entries(self._part(owner), self.regions[owner])

    def read_given(self, reader: Reader, sender: int) -> Entries:
        """Another rank's selection in the own region; see `ScopeSum.read_given`."""
        return reader.entries(self.regions[self._rank].elems, self._state.limits.message)

    def make(self, readers: Mapping[int, Reader]) -> None:
        """Add up in the order of ranks, and keep the largest."""
        region = self.regions[self._rank]
        sums: F32 = scratch("oktopk.sums", region.elems, np.float32)
        sums[:] = 0.0
        for rank in range(len(self.regions)):
            if rank == self._rank:
                indices, values = self._part(rank)
                inside = scratch("oktopk.inside", indices.size, np.uint32)
                np.subtract(indices, np.uint32(region.start), out=inside)
                scatter_add(inside, values, sums)
            else:
                scatter_add(*self.read_given(readers[rank], rank), sums)
        if not (self._finite and all_finite(sums)):
            self.told[self._rank] = Summary(None, self._knots)
            return
        limits, due = self._state.limits, self.due.threshold
        room = self._state.sums.part(0, min(region.elems, self._state.sums.elems))
        threshold = _SMALLEST if due else self._state.threshold
        count = select_above(sums, threshold, *room)
        self.sums = room.part(0, count)
        self.sums.indices[:] += np.uint32(region.start)
        if due:
            count = min(count, limits.message)
            self._tell(count)
        self.told[self._rank] = Summary(count, self._knots)

    def share(self, writer: Writer) -> None:
        """Tell of it."""
        own = self.told[self._rank]
        if own.count is None:
            writer.number(_NOT_FINITE)
            return
        writer.number(own.count)
        if self.due.threshold:
            writer.array(self._state.told[self._rank, : own.count])
        writer.array(own.knots)

    def check_shared(self, reader: Reader, owner: int) -> None:
        """Check what another rank tells: a count, and what is due of magnitudes and knots.

        Raises:
            PayloadError: The count is above what a message or the region holds; magnitudes are not
                rising and finite above 0; knots are not rising, or beyond the scope; or the message
                ends before them.
        """
        self._read(reader, owner)

    def take_shared(self, reader: Reader, owner: int) -> None:
        """Keep it; see `ScopeSum.take_shared`."""
        self.told[owner], magnitudes = self._read(reader, owner)
        self._state.told[owner, : magnitudes.size] = magnitudes

    def _part(self, owner: int) -> Entries:
        """What an owner gets."""
        return self._state.shares.part(self._cuts[owner], self._cuts[owner + 1])

    def _cut(self, selected: Entries) -> list[int]:
        """Leave the largest of each region, as many as a message may have; return where they end.

        What is left out moves nowhere: residuals still hold all of it.
        """
        elems, most = self._state.limits.elems, self._state.limits.message
        starts = [
            int(np.searchsorted(selected.indices, np.uint32(region.start)))
            if region.start < elems
            else selected.elems
            for region in self.regions
        ]
        cuts = [0]
        for start, stop in itertools.pairwise([*starts, selected.elems]):
            part = selected.part(start, stop)
            part = part.keep_largest(min(most, part.elems))
            cuts.append(self._state.selected.put(cuts[-1], part))
        return cuts

    def _tell(self, count: int) -> None:
        """Write down the largest magnitudes, rising."""
        size = self.sums.elems
        magnitudes: F32 = scratch("oktopk.magnitudes", size, np.float32)
        np.abs(self.sums.values, out=magnitudes)
        magnitudes.sort()
        self._state.told[self._rank, :count] = magnitudes[size - count :]

    def _read(self, reader: Reader, owner: int) -> tuple[Summary, F32]:
        limits, region = self._state.limits, self.regions[owner]
        count = int(reader.numbers(1)[0])
        if count == _NOT_FINITE:
            return Summary(None, reader.numbers(0)), reader.floats(0)
        most = limits.message if self.due.threshold else self._state.sums.elems
        if count > min(most, region.elems):
            raise PayloadError(f"it tells of {count} sums in a region of {region.elems} elements")
        magnitudes = reader.floats(count if self.due.threshold else 0)
        rising = bool((magnitudes[1:] >= magnitudes[:-1]).all())
        if not (rising and np.isfinite(magnitudes).all() and (magnitudes[:1] > 0.0).all()):
            raise PayloadError("it tells of magnitudes that are not rising numbers above 0")
        knots = reader.numbers(KNOTS - 1 if self.due.regions else 0)
        if (knots[1:] < knots[:-1]).any() or (knots > limits.elems).any():
            raise PayloadError(f"its knots are not rising numbers up to {limits.elems}")
        return Summary(count, knots.copy()), magnitudes

    def _knots_of(self, selected: U32) -> U32:
        """Where the selection's parts begin; as regions are if nothing is selected."""
        if not self.due.regions:
            return np.empty(0, np.uint32)
        inner, ranks = range(1, KNOTS), len(self.regions)
        if selected.size:
            return selected[[q * selected.size // KNOTS for q in inner]]
        edges = [*(region.start for region in self.regions), self._state.limits.elems]
        knots = [between(edges, q * ranks, KNOTS) for q in inner]
        return np.array([min(knot, 2**32 - 1) for knot in knots], np.uint32)
