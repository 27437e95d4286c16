"""Graphs of ranks that average with their neighbours only, and the weights with which they do.

Each rank replaces x_i by sum_j w_ij x_j. All come to the mean of all if W is symmetric, its rows
sum to 1, and no other eigenvalue than that has the magnitude 1: each such step brings them nearer
to it by the second largest (Boyd, Ghosh, Prabhakar and Shah, "Randomized gossip algorithms", 2006).
Weights are those of Metropolis and Hastings: w_ij = 1 / (1 + max(d_i, d_j)) for
neighbours with d_i and d_j neighbours, and the rest stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_TOLERANCE = 1e-6
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Graph:
    """Who averages with whom.

    Args:
        weights: w_ij, by row.

    Raises:
        ValueError: They are no symmetric, doubly stochastic matrix of a connected graph; the
            message says what is wrong, as the end of a sentence.
    """

    weights: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        fault = _fault(self.weights)
        if fault:
            raise ValueError(fault)
        object.__setattr__(self, "weights", _exact(self.weights))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.weights)

    def neighbours(self, rank: int) -> dict[int, float]:
        """Return with whom a rank averages, and with which weights.

        Args:
            rank: i, from 0 to `size` - 1.

        Returns:
            By rank j other than i, in ascending order of j: w_ij, where it is not 0.
        """
        row = enumerate(self.weights[rank])
        return {peer: weight for peer, weight in row if weight and peer != rank}

    def lazy(self, step: float) -> Graph:
        """Return the graph in which a rank goes only so far to what it would be.

        Args:
            step: 1 for all of the way; more than 0.
        """
        rows = (
            tuple(step * weight + (1 - step) * (i == j) for j, weight in enumerate(row))
            for i, row in enumerate(self.weights)
        )
        return Graph(tuple(rows))

    @cached_property
    def gap(self) -> float:
        """1 minus the second largest magnitude of an eigenvalue: 1 if one step brings the mean."""
        if self.size == 1:
            return 1.0
        magnitudes = np.sort(np.abs(np.linalg.eigvalsh(np.array(self.weights))))
        return float(1.0 - magnitudes[-2])


def ring(size: int) -> Graph:
    """Each rank with the one before and the one behind.

    Example:
        >>> ring(5).neighbours(0)
        {1: 0.3333333333333333, 4: 0.3333333333333333}
    """
    return _of_shifts(size, (1,))


def exponential(size: int) -> Graph:
    """Each rank with those 1, 2, 4, ... before and behind.

    Example:
        >>> sorted(exponential(8).neighbours(0))
        [1, 2, 4, 6, 7]
    """
    return _of_shifts(size, (1 << i for i in range(size.bit_length()) if 1 << i < size))


def complete(size: int) -> Graph:
    """Each rank with all others."""
    return _of_shifts(size, range(1, size))


def torus(size: int) -> Graph:
    """Each rank with up to four others, on the grid whose sides are the most alike.

    Example:
        >>> sorted(torus(12).neighbours(0))
        [1, 3, 4, 8]
    """
    rows = max(side for side in range(1, math.isqrt(size) + 1) if size % side == 0)
    columns = size // rows
    pairs = set()
    for rank in range(size):
        row, column = divmod(rank, columns)
        pairs |= {(rank, row * columns + (column + 1) % columns)}
        pairs |= {(rank, (row + 1) % rows * columns + column)}
    return _of_pairs(size, pairs)


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "ring": ring,
    "torus": torus,
    "exponential": exponential,
    "complete": complete,
}
"""By name, of a number of ranks."""


def _of_shifts(size: int, shifts: Iterable[int]) -> Graph:
    steps = list(shifts)
    return _of_pairs(size, ((rank, (rank + s) % size) for rank in range(size) for s in steps))


def _of_pairs(size: int, pairs: Iterable[tuple[int, int]]) -> Graph:
    """The graph of these edges, with Metropolis weights."""
    beside: list[set[int]] = [set() for _ in range(size)]
    for a, b in pairs:
        if a != b:
            beside[a].add(b)
            beside[b].add(a)
    weights = [[0.0] * size for _ in range(size)]
    for rank, peers in enumerate(beside):
        for peer in peers:
            weights[rank][peer] = 1.0 / (1 + max(len(peers), len(beside[peer])))
        weights[rank][rank] = 1.0 - math.fsum(weights[rank])
    return Graph(tuple(map(tuple, weights)))


def _exact(weights: Matrix) -> tuple[tuple[float, ...], ...]:
    """Return weights that are symmetric to the bit, and of which each row sums to 1."""
    rows = [
        [0.0 if i == j else (weight + weights[j][i]) / 2 for j, weight in enumerate(row)]
        for i, row in enumerate(weights)
    ]
    for i, row in enumerate(rows):
        row[i] = 1.0 - math.fsum(row)
    return tuple(map(tuple, rows))


def _fault(weights: Matrix) -> str:
    """Return why weights are of no graph that comes to the mean; nothing if they are of one."""
    size = len(weights)
    if not size or any(len(row) != size for row in weights):
        return "is not square: give a row, and in it a weight, for each rank"
    for i, row in enumerate(weights):
        if min(row) < 0:
            return f"has a negative weight in row {i}"
        if abs(math.fsum(row) - 1) > _TOLERANCE:
            return f"has a row {i} that sums to {math.fsum(row):g}; weights of a rank sum to 1"
        for j in range(i):
            if abs(row[j] - weights[j][i]) > _TOLERANCE:
                return f"is not symmetric: rank {i} gives rank {j} another weight than it gets"
    apart = set(range(size)) - reached_from(0, weights)
    if apart:
        return f"is of a graph that is not connected: rank {min(apart)} hears nothing of rank 0"
    return ""


def reached_from(rank: int, weights: Matrix) -> set[int]:
    """Return the ranks to which a way leads from one, itself included.

    Args:
        rank: Where ways begin.
        weights: By row: from rank i a way leads to each j whose weight in row i is not 0.
    """
    reached, found = {rank}, [rank]
    while found:
        row = weights[found.pop()]
        new = {peer for peer, weight in enumerate(row) if weight} - reached
        reached |= new
        found += new
    return reached
