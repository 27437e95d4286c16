"""What one scope of Ok-Topk keeps: residual, thresholds, regions, and memory for its lists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from compressa.aggregators.base import Merge, Scope, World
from compressa.aggregators.sparse_messages import Entries, entries_bytes, padded
from compressa.arrays import as_array, scratch_tensor
from compressa.collectives.accumulator import Span
from compressa.kernels.scratch import scratch
from compressa.kernels.select import select_above

KNOTS = 64
"""Into how many parts of equal count a rank cuts its selection, to say how it is spread."""

UNEVEN = 2
"""How many times its share of k an owner may be given by a rank, and bring to all by itself."""


class Limits(NamedTuple):
    """What bounds the messages of a scope.

    Attributes:
        elems: n.
        kept: k.
        message: Most elements, or magnitudes, of a message: twice the share of an owner.
    """

    elems: int
    kept: int
    message: int

    @classmethod
    def of(cls, elems: int, kept: int, ranks: int) -> Limits:
        """Work them out.

        Args:
            elems: n, elements of the scope.
            kept: k, how many of them are sent; at most n.
            ranks: Number of ranks.
        """
        return cls(elems, kept, min(kept, max(1, UNEVEN * kept // ranks)))

    @property
    def split_bytes(self) -> int:
        """Most bytes in a message of the split."""
        told = padded(4) + padded(4 * self.message) + padded(4 * (KNOTS - 1))
        return max(entries_bytes(self.message, self.elems), told)

    @property
    def gather_bytes(self) -> int:
        """Most bytes in a message of the gather."""
        return entries_bytes(self.message, self.elems)


@dataclass(frozen=True)
class Due:
    """What is estimated anew in a step.

    Attributes:
        local: This rank's threshold.
        threshold: That of the sums.
        regions: Where regions begin, from the next step on.
    """

    local: bool
    threshold: bool
    regions: bool


class ScopeState:
    """What a scope keeps.

    Args:
        scope: The scope.
        limits: What bounds its messages.
        world: Ranks and state.

    Attributes:
        residual: float32[n]; p = g + e once a step has begun.
        limits: As given.
        selected: Memory for what this rank selects; later, for what it sends.
        shares: The same, divided by the number of ranks.
        sums: Memory for the largest sums of the own region.
        told: float32[P, message]; by rank, magnitudes of its largest sums.
        piece: Memory for what this rank brings to all.
    """

    def __init__(self, scope: Scope, limits: Limits, world: World) -> None:
        self.residual = scope.residual(world.state)
        self.limits = limits
        ranks = self._ranks = world.size
        parameter = scope.segment.parameter
        # Not the same on every rank; whatever becomes of it in another world is replaced there.
        local = world.state.vector("oktopk_local", parameter, 1, Merge.SUM)
        # For how many ranks it was made, the threshold, and the knots.
        agreed = world.state.vector("oktopk_agreed", parameter, KNOTS + 1, Merge.FIRST)
        self._local, self._agreed = as_array(local), as_array(agreed)
        self.selected, self.shares = Entries.room(limits.kept), Entries.room(limits.kept)
        self.sums = Entries.room(min(limits.elems, ranks * limits.message))
        self.told = np.zeros((ranks, limits.message), np.float32)
        self.piece = Entries.room(limits.message)
        self._positions = torch.zeros(limits.kept, dtype=torch.int64)
        self._taken = torch.zeros(limits.kept)
        self._sent = 0

    @property
    def threshold(self) -> float:
        """The smallest magnitude of a sum that is brought to all; 0 while it is not known."""
        return float(self._agreed[1])

    def due(self, step: int, threshold_steps: int, region_steps: int) -> Due:
        """Say what is to be estimated in a step: at its time, or because it is not known.

        Args:
            step: Optimizer step.
            threshold_steps: Every how many steps both thresholds are; at least 1.
            region_steps: Every how many steps the regions are; at least 1.
        """
        new = int(self._agreed[0]) != self._ranks
        soon, unknown = new or step % threshold_steps == 0, self.threshold == 0.0
        return Due(soon, soon or unknown, new or unknown or step % region_steps == 0)

    def regions(self) -> tuple[Span, ...]:
        """Return the regions of all ranks, side by side: equal ones until knots are known."""
        ranks, elems = self._ranks, self.limits.elems
        if int(self._agreed[0]) != ranks:
            edges = [elems * r // ranks for r in range(ranks + 1)]
        else:  # float32 numbers, which may round up
            knots = [0, *(min(int(knot), elems) for knot in self._agreed[2:].tolist()), elems]
            edges = [between(knots, r * KNOTS, ranks) for r in range(ranks)] + [elems]
        return tuple(itertools.starmap(Span, itertools.pairwise(edges)))

    def select(self, due: Due) -> Entries:
        """Choose what reaches this rank's threshold; of more than k elements, the k largest.

        Args:
            due: If `local`, the k largest are chosen whatever they are. Then, and wherever k are
                chosen, the smallest of their magnitudes is this rank's threshold from now on.

        Returns:
            The front of `selected`: what was chosen of the residual.
        """
        indices, values = self.selected
        threshold = 0.0 if due.local else float(self._local[0])
        count = select_above(as_array(self.residual), threshold, indices, values)
        if count and (due.local or count == self.limits.kept):
            magnitudes = scratch("oktopk.magnitudes", count, np.float32)
            self._local[0] = np.abs(values[:count], out=magnitudes).min()
        return self.selected.part(0, count)

    def agree(self, threshold: float, knots: Sequence[int] | None) -> None:
        """Keep what all ranks have worked out alike.

        Args:
            threshold: The magnitude that sums must reach from the next step on.
            knots: KNOTS - 1 numbers of elements, rising: where all parts but the first begin; None
                to keep those that there are.
        """
        self._agreed[0] = self._ranks
        self._agreed[1] = threshold
        if knots is not None:
            self._agreed[2:] = knots

    def take(self, out: torch.Tensor, sent: int) -> None:
        """Take out of the residual what was sent and delivered, that is, where `out` is not 0.

        Args:
            out: float32[n], the mean that this step delivers.
            sent: How many of `selected`, from the first, this rank has sent.
        """
        self._sent = sent
        positions, taken = self._sending()
        positions.copy_(torch.from_numpy(self.selected.indices[:sent].view(np.int32)))
        positions.bitwise_and_(0xFFFFFFFF)
        delivered = scratch_tensor("oktopk.delivered", sent, torch.float32, out.device)
        torch.index_select(out, 0, positions, out=delivered)
        torch.index_select(self.residual, 0, positions, out=taken)
        taken.masked_fill_(delivered == 0.0, 0.0)
        self.residual.index_add_(0, positions, taken, alpha=-1.0)  # p - p = 0

    def undo(self) -> None:
        """Put back what the last `take` took out of the residual."""
        self.residual.index_add_(0, *self._sending())
        self._sent = 0

    def _sending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where this rank has sent something, and what was taken there."""
        return self._positions[: self._sent], self._taken[: self._sent]


def between(knots: Sequence[int], numerator: int, denominator: int) -> int:
    """Return the position of numerator / denominator on a line through knots 0, 1, 2 and so on.

    In whole numbers: it is the same on every processor.

    Args:
        knots: The places of 0, 1, 2 and so on, rising.
        numerator: At least 0.
        denominator: At least 1; the fraction is at most the number of the last knot.

    Example:
        >>> between([0, 10, 40], 3, 2)
        25
    """
    before, rest = divmod(numerator, denominator)
    if not rest:
        return knots[before]
    return knots[before] + (knots[before + 1] - knots[before]) * rest // denominator
