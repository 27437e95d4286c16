"""Balance and gather: what owners have selected of their sums goes to all, in pieces."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from compressa.aggregators.oktopk_split import Split
from compressa.aggregators.oktopk_state import UNEVEN, ScopeState
from compressa.aggregators.owned_sum import ScopeSum
from compressa.aggregators.sparse_messages import Entries, Reader, Writer
from compressa.arrays import as_array
from compressa.codecs._sparse import F32
from compressa.collectives.accumulator import Span
from compressa.errors import PayloadError
from compressa.kernels.scratch import scratch
from compressa.kernels.topk import scatter_add


@dataclass(frozen=True)
class Plan:
    """What all ranks make of what they were told: who brings what to all.

    It is worked out in whole numbers and by comparison, so that it is the same on every rank.

    Attributes:
        counts: By owner, how many of its sums count.
        regions: Where they lie.
        finite: Whether all ranks have nothing but finite numbers; if not, nothing counts.
        threshold: The smallest magnitude that counts, from now on; 0 if it is not known.
        knots: The mean ones, if they were due.
    """

    counts: tuple[int, ...]
    regions: tuple[Span, ...]
    finite: bool
    threshold: float = 0.0
    knots: tuple[int, ...] | None = None

    @classmethod
    def of(cls, split: Split, state: ScopeState) -> Plan:
        """Work it out of what all ranks told, so that all have the same.

        Args:
            split: The first sum, which is done.
            state: What the scope keeps.
        """
        told = [split.told[rank] for rank in range(len(split.regions))]
        counts = [summary.count for summary in told if summary.count is not None]
        if len(counts) < len(told):
            return cls((0,) * len(told), split.regions, finite=False)
        kept, threshold = state.limits.kept, state.threshold
        if split.due.threshold:
            threshold, counts = _estimated(state, counts)
        total = sum(counts)
        if total > kept:
            counts = [count * kept // total for count in counts]
        knots = None
        if split.due.regions:
            columns = zip(*(summary.knots.tolist() for summary in told), strict=True)
            knots = tuple(sum(column) // len(told) for column in columns)
        return cls(tuple(counts), split.regions, True, threshold, knots)

    @cached_property
    def starts(self) -> list[int]:
        """Where each owner's elements begin among all, and where the last one's end."""
        return list(itertools.accumulate(self.counts, initial=0))

    @cached_property
    def cuts(self) -> list[int]:
        """Where pieces begin among all chosen elements, and where the last ends: one edge more.

        They begin with their owners' (`starts`), or at equal distances if that is too uneven.
        """
        ranks, total = len(self.counts), self.starts[-1]
        if ranks * max(self.counts) <= UNEVEN * total:
            return self.starts
        return [total * q // ranks for q in range(ranks + 1)]

    def overlap(self, owner: int, piece: int) -> tuple[int, int]:
        """Return where what an owner has of a piece begins and ends, as `Entries.part` takes it.

        Args:
            owner: The rank whose chosen elements they are.
            piece: The rank that joins the piece.

        Returns:
            Numbers among the owner's own elements; (0, 0) if it has none there.
        """
        begin, end = self.starts[owner], self.starts[owner + 1]
        start, stop = max(begin, self.cuts[piece]), min(end, self.cuts[piece + 1])
        return (start - begin, stop - begin) if start < stop else (0, 0)

    def span(self, piece: int) -> Span:
        """Return the range of the scope's elements in which those of a piece lie: whole regions."""
        start, stop = self.cuts[piece], self.cuts[piece + 1]
        if start == stop:
            return Span(0, 0)
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop) - 1
        return Span(self.regions[first].start, self.regions[last].stop)


def _estimated(state: ScopeState, counts: list[int]) -> tuple[float, list[int]]:
    """The threshold that leaves k of the magnitudes that were told, and how many reach it."""
    total, kept = sum(counts), state.limits.kept
    every: F32 = scratch("oktopk.magnitudes", total, np.float32)
    told = [state.told[rank, :count] for rank, count in enumerate(counts)]
    np.concatenate(told, out=every)
    if total < kept and max(counts) == state.limits.message:
        return 0.0, counts  # there are more, of which nobody has been told
    if not total:
        return 0.0, counts
    index = max(total - kept, 0)
    every.partition(index)
    threshold = float(every[index])
    return threshold, [int(np.count_nonzero(own >= np.float32(threshold))) for own in told]


class Gather(ScopeSum):
    """One scope's part of the second sum, which brings the chosen sums to all ranks, in pieces.

    Args:
        split: The first sum, which is done.
        plan: What all ranks made of it.
        state: What the scope keeps.
        out: float32, 1-D, contiguous, as long as the scope: zeros; holds the mean when it is done.
        rank: This rank.
        loss_scale: What the mean is multiplied by.
    """

    def __init__(
        self,
        split: Split,
        plan: Plan,
        state: ScopeState,
        out: torch.Tensor,
        rank: int,
        loss_scale: float,
    ) -> None:
        self._plan, self._rank = plan, rank
        self._out, self._loss_scale = as_array(out), loss_scale
        self._chosen = split.sums.keep_largest(plan.counts[rank])
        self._piece = state.piece.part(0, 0)
        self._room = state.piece

    def give(self, writer: Writer, owner: int) -> None:
        """What the own region has of a piece."""
        part = self._chosen.part(*self._plan.overlap(self._rank, owner))
        writer.entries(part, self._plan.regions[self._rank])

    def read_given(self, reader: Reader, sender: int) -> Entries:
        """What another region has of the own piece; see `ScopeSum.read_given`."""
        start, stop = self._plan.overlap(sender, self._rank)
        return _exactly(reader, self._plan.regions[sender], stop - start)

    def make(self, readers: Mapping[int, Reader]) -> None:
        """Join what there is of the own piece."""
        end = 0
        for rank, region in enumerate(self._plan.regions):
            start = end
            if rank == self._rank:
                end = self._room.put(
                    start, self._chosen.part(*self._plan.overlap(rank, self._rank))
                )
            else:
                end = self._room.put(start, self.read_given(readers[rank], rank))
                self._room.indices[start:end] += np.uint32(region.start)
        self._piece = self._room.part(0, end)
        self._write(self._piece, 0)

    def share(self, writer: Writer) -> None:
        """Bring it to all."""
        writer.entries(self._piece, self._plan.span(self._rank))

    def check_shared(self, reader: Reader, owner: int) -> None:
        """Check another piece.

        Raises:
            PayloadError: It has not as many elements as the plan says, or they are none of the
                piece's range.
        """
        self._read(reader, owner)

    def take_shared(self, reader: Reader, owner: int) -> None:
        """Write it into the mean."""
        self._write(self._read(reader, owner), self._plan.span(owner).start)

    def _read(self, reader: Reader, owner: int) -> Entries:
        count = self._plan.cuts[owner + 1] - self._plan.cuts[owner]
        return _exactly(reader, self._plan.span(owner), count)

    def _write(self, piece: Entries, start: int) -> None:
        scatter_add(*piece, self._out[start:], weight=self._loss_scale)


def _exactly(reader: Reader, span: Span, count: int) -> Entries:
    found = reader.entries(span.elems, count)
    if found.elems != count:
        raise PayloadError(f"{found.elems} elements came where {count} are due")
    return found
