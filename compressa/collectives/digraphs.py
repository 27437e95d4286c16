"""Directed graphs of ranks that push shares of what they have, and the shares.

In a meeting each rank keeps the share p_ii of its values, and sends p_ji of them to rank j. It
gives away all that it does not keep: each column of P sums to 1. So no mass is made or lost, though
some ranks may come to hold more than others. Ratios to a weight that is pushed alike come to the
mean if every rank hears of every other in the end, and no share goes round forever (Kempe, Dobra
and Gehrke, "Gossip-Based Computation of Aggregate Information", FOCS 2003).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compressa.collectives.graphs import reached_from

_TOLERANCE = 1e-6
_LEAST_GAP = 1e-9
Shares = Sequence[Mapping[int, float]]
"""By sender, the share of each receiver, itself among them."""


@dataclass(frozen=True)
class Digraph:
    """Who sends to whom in each meeting, and which share of what it has.

    Args:
        meetings: The shares of each meeting, which come again and again in this order.
    """

    meetings: Sequence[Shares]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.meetings[0])

    def kept(self, rank: int, meeting: int) -> float:
        """Return the share of its values that a rank keeps, from 0 to 1.

        Args:
            rank: The rank.
            meeting: Number of the meeting; they come again after the last of `meetings`.
        """
        return self._shares(meeting)[rank].get(rank, 0.0)

    def receivers(self, rank: int, meeting: int) -> tuple[int, ...]:
        """Return to which other ranks a rank sends, ascending; arguments as of `kept`."""
        return tuple(sorted(self._shares(meeting)[rank].keys() - {rank}))

    def senders(self, rank: int, meeting: int) -> dict[int, float]:
        """Return from which other ranks a rank hears; arguments as of `kept`.

        Returns:
            By sender, in ascending order of senders: the share of the sender's values that comes.
        """
        shares = enumerate(self._shares(meeting))
        return {peer: own[rank] for peer, own in shares if rank in own and peer != rank}

    def most(self, rank: int) -> tuple[int, int]:
        """Return to how many ranks a rank sends in a meeting at most, and of how many it hears."""
        meetings = range(len(self.meetings))
        sends = max(len(self.receivers(rank, meeting)) for meeting in meetings)
        return sends, max(len(self.senders(rank, meeting)) for meeting in meetings)

    def _shares(self, meeting: int) -> Shares:
        return self.meetings[meeting % len(self.meetings)]


def exponential(size: int) -> Digraph:
    """Each rank sends half to the one 1, 2, 4, ... ahead, in one meeting after the other.

    Assran, Loizou, Ballas and Rabbat, "Stochastic Gradient Push for Distributed Deep Learning",
    ICML 2019. Of 2^n ranks all have the mean after n meetings.

    Example:
        >>> [exponential(8).receivers(7, meeting) for meeting in range(4)]
        [(0,), (1,), (3,), (0,)]
    """
    return Digraph([_ahead(size, 1 << i) for i in range(max(1, (size - 1).bit_length()))])


def ring(size: int) -> Digraph:
    """Each rank sends half to the next one.

    Example:
        >>> ring(5).senders(0, 0)
        {4: 0.5}
    """
    return Digraph([_ahead(size, 1)])


def weighted(weights: Sequence[Sequence[float]]) -> Digraph:
    """Shares as they are given, in every meeting.

    Args:
        weights: p_ji, a row for each receiver j and in it one for each sender i.

    Raises:
        ValueError: A column does not sum to 1, or ranks would not come to the mean; the message
            says what is wrong, as the end of a sentence.
    """
    fault = _fault(weights)
    if fault:
        raise ValueError(fault)
    columns = list(zip(*weights, strict=True))
    shares = [{j: p / math.fsum(column) for j, p in enumerate(column) if p} for column in columns]
    return Digraph([shares])


DIGRAPHS: dict[str, Callable[[int], Digraph]] = {"exponential": exponential, "ring": ring}
"""By name, of a number of ranks."""


def _ahead(size: int, shift: int) -> Shares:
    if size == 1:
        return [{0: 1.0}]
    return [{rank: 0.5, (rank + shift) % size: 0.5} for rank in range(size)]


def _fault(weights: Sequence[Sequence[float]]) -> str:
    """Return why shares do not bring ranks to the mean; nothing if they do."""
    size = len(weights)
    if not size or any(len(row) != size for row in weights):
        return "is not square: give a row, and in it a share, for each rank"
    for i, column in enumerate(zip(*weights, strict=True)):
        if min(column) < 0:
            return f"has a negative share in column {i}"
        if abs(math.fsum(column) - 1) > _TOLERANCE:
            total = math.fsum(column)
            return f"has a column {i} that sums to {total:g}; a rank's shares sum to 1"
    for rows, text in (
        (list(zip(*weights, strict=True)), "hears nothing of"),
        (weights, "tells nothing to"),
    ):
        apart = set(range(size)) - reached_from(0, rows)
        if apart:
            return f"is not strongly connected: rank {min(apart)} {text} rank 0"
    magnitudes = np.sort(np.abs(np.linalg.eigvals(np.array(weights, dtype=np.float64))))
    if size > 1 and 1 - magnitudes[-2] < _LEAST_GAP:
        return "has shares that go round forever; have each rank keep a share of its own"
    return ""
