"""ACP-SGD: half a power iteration a step, so one all-reduce a step (Zhang et al., 2023).

For each matrix M = g + e of shape [n, m] (a convolution is [c_out, c_in * kh * kw]), where the
optimizer step is even:

    Q = orthonormalise(Q)
    P = M Q               one round: the mean over the ranks takes its place
    out = mean(P) Q^T,    e = M - P Q^T with the rank's own P

and where it is odd the same with P and Q exchanged: P = orthonormalise(P),
Q = M^T P, out = P mean(Q)^T, e = M - P Q^T. Vectors, and matrices that would gain too little,
travel dense in the same round. A step sends approx_rank n or approx_rank m numbers a matrix, half
of PowerSGD's, and waits for the network once instead of twice; the factors follow the gradient
half as fast.

A rank's residual is what its own matrix has outside of the shared subspace, so ||e|| <= ||M||,
and sum_t out_t + mean of e = sum_t mean of g, since the mean of the P Q^T is mean(P) Q^T.
Replicas agree bit for bit as in `powersgd`: one owner sums each factor, and orthonormalisation
and products follow a written order of float operations (`kernels.lowrank`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from compressa.aggregators.base import Aggregator, Round, Rounds, StepContext, Verb, World
from compressa.aggregators.factors import F32, LowRank, LowRankAggregator, Side
from compressa.kernels.lowrank import Factors
from compressa.parameters import Layout

_P_STREAM, _Q_STREAM = 0x4150, 0x4151  # "AP", "AQ"


@dataclass(frozen=True, kw_only=True)
class ACPSGD(LowRank):
    """Send one of the two rank-`approx_rank` factors a step, in turn; error feedback built in.

    Args:
        approx_rank: Columns of the factors; `rank` will do in a file.
        min_gain: Matrices for which 2 n m / (approx_rank (n + m)) is below this travel dense.

    Example:
        >>> ACPSGD(approx_rank=2).factor_elems((1024, 1024))
        2048
    """

    name: ClassVar[str] = "acpsgd"
    iteration_steps: ClassVar[int] = 2

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """One round for the unit."""
        return ACPSGDAggregator(self, layout, world)


class ACPSGDAggregator(LowRankAggregator):
    """All matrices of one unit, in one all-reduce."""

    def __init__(self, hyper: ACPSGD, layout: Layout, world: World) -> None:
        super().__init__(hyper, layout, world)
        given, count = (self._lengths, world), len(self._matrices)
        self._left = Side("acpsgd", _P_STREAM, self._matrices, [False] * count, *given)
        self._right = Side("acpsgd", _Q_STREAM, self._matrices, [True] * count, *given)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum, of the left or the right factors and the vectors."""
        most = max(side.sums.capacity_bytes for side in (self._left, self._right))
        return (Round(Verb.ALL_REDUCE, torch.float32, most, dense=True),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Half a power iteration."""
        fixed, moving = self._sides(context)
        views = self._begin(gradients, moving.sums, context)
        for i, g in enumerate(views):
            matrix = self._matrices[i]
            multiply = matrix.left if fixed is self._right else matrix.right
            multiply(g, fixed.begin(i), moving.own[i], context)
        yield moving.mean()
        self._copy_back(gradients, moving.sums)
        self._finish(views, context)

    def _sides(self, context: StepContext) -> tuple[Side, Side]:
        """Return the factors that a step takes as they are, and those that it sends."""
        even = context.step % 2 == 0
        return (self._right, self._left) if even else (self._left, self._right)

    def _averaged(self, context: StepContext) -> Side:
        return self._sides(context)[1]

    def _factors(self, i: int, averaged: F32, context: StepContext) -> Factors:
        fixed = self._sides(context)[0].own[i]
        return (averaged, fixed) if context.step % 2 == 0 else (fixed, averaged)
