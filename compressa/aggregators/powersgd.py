"""PowerSGD: low-rank gradients by one power iteration a step (Vogels et al., 2019).

For each matrix M = g + e of shape [n, m] (a convolution is [c_out, c_in * kh * kw]):

    P = M Q            round 1: mean over the ranks
    P = orthonormalise(P)
    Q = M^T P          round 2: mean over the ranks
    out = P Q^T,  e = M - out

Q is kept for the next step. Vectors, and matrices that would gain too little, travel dense in
round 1. Both rounds are sums of float32 factors, so the bytes are approx_rank (n + m) a
matrix, for any number of ranks and any number of buckets.

Replicas agree bit for bit: the factors are summed by one owner each, and all products and the
orthonormalisation follow a written order of float operations (`kernels.lowrank`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.aggregators.base import Aggregator, Round, Rounds, Turn, World
from compressa.aggregators.factors import F32, Directions, FactorSum, LowRank, Matrix
from compressa.kernels import lowrank
from compressa.kernels.feedback import all_finite
from compressa.parameters import Layout

_Q_STREAM = 0x5051  # "PQ"


@dataclass(frozen=True, kw_only=True)
class PowerSGD(LowRank):
    """Send rank-`approx_rank` factors of each gradient matrix; has its own error feedback.

    Args:
        approx_rank: Columns of the factors.
        min_gain: Matrices for which n m / (approx_rank (n + m)) is below this travel dense.

    Example:
        >>> PowerSGD(approx_rank=2).factor_elems((1024, 1024))
        4096
    """

    name: ClassVar[str] = "powersgd"

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return PowerSGDAggregator(self, layout, world)


class PowerSGDAggregator(Aggregator):
    """All matrices of one unit, in two all-reduces."""

    def __init__(self, hyper: PowerSGD, layout: Layout, world: World) -> None:
        matrices, self._vectors = hyper.split(layout)
        self._matrices = [Matrix(i, layout.segments[i], hyper.approx_rank, world) for i in matrices]
        self._directions = [
            Directions(
                "powersgd_q", m.segment.parameter, (m.approx_rank, m.columns), _Q_STREAM, world
            )
            for m in self._matrices
        ]
        lengths = [layout.segments[i].elems for i in self._vectors]
        left = [(m.approx_rank, m.rows) for m in self._matrices]
        right = [(m.approx_rank, m.columns) for m in self._matrices]
        self._first = FactorSum(left, lengths, world)
        self._second = FactorSum(right, (), world)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The left factors and the vectors; then the right factors."""
        rounds = (self._first.round, self._second.round)
        return rounds if self._matrices else rounds[:1]

    def run(self, gradients: Sequence[torch.Tensor], turn: Turn) -> Rounds:
        """Two power-iteration half steps, a mean after each."""
        for i, place in zip(self._vectors, self._first.vectors, strict=True):
            place.copy_(gradients[i])
        views = [matrix.begin(gradients, turn) for matrix in self._matrices]
        for i, g in enumerate(views):
            self._matrices[i].left(g, self._directions[i].rows, self._first.factors[i], turn)
        yield self._first.mean()
        for i, place in zip(self._vectors, self._first.vectors, strict=True):
            gradients[i].copy_(place)
        if self._matrices:
            yield from self._second_half(views, turn)

    def _second_half(self, views: Sequence[F32], turn: Turn) -> Rounds:
        for m, p, q in zip(views, self._first.factors, self._second.factors, strict=True):
            lowrank.orthonormalize(p)
            lowrank.right_factor(m, p, q)
        yield self._second.mean()
        for i, m in enumerate(views):
            p, q, verdicts = self._first.factors[i], self._second.factors[i], self._second.judge(i)
            self._matrices[i].keep_rest(m, p, q, verdicts, turn)
            self._directions[i].keep(q, verdicts, turn)

    def rollback(self, turn: Turn) -> None:
        """Add the product back to the residual: then it is M again. Waits for a GPU."""
        factors = zip(self._matrices, self._first.factors, self._second.factors, strict=True)
        for matrix, p, q in factors:
            if all_finite(q):
                matrix.give_back(p, q, turn)
