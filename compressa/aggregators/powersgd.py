"""PowerSGD: low-rank gradients by one power iteration a step (Vogels et al., 2019).

For each matrix M = g + e of shape [n, m] (a convolution is [c_out, c_in * kh * kw]):

    P = M Q                         round 1: mean over the ranks
    P = orthonormalise(mean(P))
    Q = M^T P                       round 2: mean over the ranks
    out = P mean(Q)^T,  e = M - P Q^T with the rank's own Q

mean(Q) is kept for the next step. Where n > m, P and Q are exchanged: Q is
orthonormal, and P is kept. Vectors, and matrices that would gain too little, travel dense in
round 1. Both rounds are sums of float32 factors, so the bytes are approx_rank (n + m) a
matrix, for any number of ranks and any number of buckets.

The paper's e = M - out keeps all by which a rank's matrix differs from the mean, which nothing
ever takes away, so that it grows with every step. With the own factor a rank keeps only what its
matrix has outside of the shared subspace: ||e|| <= ||M||, the mean of e over the ranks is the
same, and so is every output. The subspace has min(n, m) dimensions to move through, and the means
of the gradients lead it through all of them, as long as they have a part in each; on the longer
side they could not, if ranks differ in more than m ways. What ranks have in a dimension where
their sum is always zero, no exchange of means finds.

Replicas agree bit for bit: the factors are summed by one owner each, and all products and the
orthonormalisation follow a written order of float operations (`kernels.lowrank`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.aggregators.base import Aggregator, Round, Rounds, StepContext, World
from compressa.aggregators.factors import F32, FactorSum, LowRank, LowRankAggregator, Side
from compressa.kernels import lowrank
from compressa.kernels.lowrank import Factors
from compressa.parameters import Layout

_STREAM = 0x5051  # "PQ"


@dataclass(frozen=True, kw_only=True)
class PowerSGD(LowRank):
    """Send rank-`approx_rank` factors of each gradient matrix; has its own error feedback.

    Args:
        approx_rank: Columns of the factors; `rank` will do in a file.
        min_gain: Matrices for which n m / (approx_rank (n + m)) is below this travel dense.

    Example:
        >>> PowerSGD(approx_rank=2).factor_elems((1024, 1024))
        4096
    """

    name: ClassVar[str] = "powersgd"

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return PowerSGDAggregator(self, layout, world)


class PowerSGDAggregator(LowRankAggregator):
    """All matrices of one unit, in two all-reduces."""

    def __init__(self, hyper: PowerSGD, layout: Layout, world: World) -> None:
        super().__init__(hyper, layout, world)
        self._tall = [matrix.rows > matrix.columns for matrix in self._matrices]
        shapes = [m.factor_shape(tall) for m, tall in zip(self._matrices, self._tall, strict=True)]
        self._basis = FactorSum(shapes, self._lengths, world)
        right = [not tall for tall in self._tall]
        self._other = Side("powersgd", _STREAM, self._matrices, right, (), world)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The left factors and the vectors; then the right factors."""
        rounds = (self._basis.round, self._other.sums.round)
        return rounds if self._matrices else rounds[:1]

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Two power-iteration half steps, a mean after each."""
        views = self._begin(gradients, self._basis, context)
        for i, g in enumerate(views):
            multiply = self._matrices[i].right if self._tall[i] else self._matrices[i].left
            multiply(g, self._other.begin(i), self._basis.factors[i], context)
        yield self._basis.mean()
        self._copy_back(gradients, self._basis)
        if self._matrices:
            yield from self._second_half(views, context)

    def _second_half(self, views: Sequence[F32], context: StepContext) -> Rounds:
        for i, m in enumerate(views):
            multiply = lowrank.left_factor if self._tall[i] else lowrank.right_factor
            lowrank.orthonormalize(self._basis.factors[i])
            multiply(m, self._basis.factors[i], self._other.own[i])
        yield self._other.mean()
        self._finish(views, context)

    def _averaged(self, context: StepContext) -> Side:
        return self._other

    def _factors(self, i: int, averaged: F32, context: StepContext) -> Factors:
        basis = self._basis.factors[i]
        return (averaged, basis) if self._tall[i] else (basis, averaged)
