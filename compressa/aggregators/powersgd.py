"""PowerSGD: low-rank gradients by one power iteration a step (Vogels et al., 2019).

For each matrix M = g + e of shape [n, m] (a convolution is [c_out, c_in * kh * kw]):

    P = M Q            round 1: mean over the ranks
    P = orthonormalise(P)
    Q = M^T P          round 2: mean over the ranks
    out = P Q^T,  e = M - out

Q is kept for the next step. Vectors, and matrices that would gain too little, travel dense in
round 1. Both rounds are sums of float32 factors, so the bytes are approx_rank (n + m) a
matrix, for any number of ranks and any number of buckets.

Replicas agree bit for bit: the factors are summed by one owner each, and orthonormalisation
and the product P Q^T follow a written order of float operations (`kernels.lowrank`). The
products with M differ between machines without harm, since only their mean is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Merge,
    Round,
    Rounds,
    Turn,
    Verb,
    World,
)
from compressa.aggregators.dense import LazyBuffers
from compressa.aggregators.scopes import held_back
from compressa.collectives.combine import DenseSum
from compressa.compressor import Compressor, Granularity
from compressa.errors import ConfigError
from compressa.kernels import lowrank, philox
from compressa.kernels.feedback import all_finite
from compressa.parameters import Layout, ParameterInfo, Segment

_Q_STREAM = 0x5051  # "PQ": shared, so that every rank starts from the same factors


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Compressor):
    """Send rank-`approx_rank` factors of each gradient matrix; has its own error feedback.

    Args:
        approx_rank: Columns of the factors.
        min_gain: Matrices for which n m / (approx_rank (n + m)) is below this travel dense.

    Example:
        >>> PowerSGD(approx_rank=2).factor_elems((1024, 1024))
        4096
    """

    name: ClassVar[str] = "powersgd"

    approx_rank: Annotated[int, Ge(1)] = 4
    min_gain: Annotated[float, Ge(1)] = 2.0

    def __post_init__(self) -> None:
        if self.approx_rank < 1:
            raise ConfigError(f"powersgd: approx_rank must be at least 1, got {self.approx_rank}")

    @property
    def granularity(self) -> Granularity:
        """A matrix, whole."""
        return Granularity.MATRIX

    def factor_elems(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers the factors of a gradient of this shape have; 0 if dense."""
        rows, columns = matrix_shape(shape)
        approx_rank = min(self.approx_rank, rows, columns)
        factors = approx_rank * (rows + columns)
        return factors if factors * self.min_gain <= rows * columns else 0

    def exempt(self, parameter: ParameterInfo, dense: Compressor) -> Compressor:
        """Vectors travel dense in the first round already: no unit of their own is needed."""
        return dense if self.factor_elems(parameter.shape) else self

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The factors, or the whole where there are none."""
        return 4 * (self.factor_elems(shape) or math.prod(shape))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return PowerSGDAggregator(self, layout, world)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, columns) of a parameter seen as a matrix; a vector has one column."""
    if len(shape) < 2:
        return math.prod(shape), 1
    return shape[0], math.prod(shape[1:])


class _Matrix:
    """One matrix of the unit: its factors in the rounds' buffers, and its state.

    Factors are stored transposed, [approx_rank, rows] and [approx_rank, columns]: the products
    with M run along memory then, which is two to three times faster.
    """

    def __init__(self, gradient: int, segment: Segment, approx_rank: int, world: World) -> None:
        self.gradient = gradient
        self.segment = segment
        self.rows, self.columns = matrix_shape(segment.parameter.shape)
        self.approx_rank = min(approx_rank, self.rows, self.columns)
        self.residual = world.state.residual(segment.parameter).view(self.rows, self.columns)
        self.kept_q = world.state.vector(
            "powersgd_q",
            segment.parameter,
            self.columns * self.approx_rank,
            Merge.FIRST,
            lambda q: _fill_random(q, segment.parameter, world.seed, 0),
        ).view(self.approx_rank, self.columns)
        self.p = torch.empty(0)
        self.q = torch.empty(0)
        self.held = False

    def of(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return gradients[self.gradient].view(self.rows, self.columns)


class PowerSGDAggregator(Aggregator):
    """All matrices of one unit, in two all-reduces."""

    def __init__(self, hyper: PowerSGD, layout: Layout, world: World) -> None:
        self._world = world
        self._matrices: list[_Matrix] = []
        self._vectors: list[int] = []
        for i, segment in enumerate(layout.segments):
            whole = segment.elems == segment.parameter.elems
            if whole and hyper.factor_elems(segment.parameter.shape):
                self._matrices.append(_Matrix(i, segment, hyper.approx_rank, world))
            else:
                self._vectors.append(i)
        lengths = [layout.segments[i].elems for i in self._vectors]
        self._first = torch.zeros(
            sum(m.rows * m.approx_rank for m in self._matrices) + sum(lengths)
        )
        self._second = torch.zeros(sum(m.columns * m.approx_rank for m in self._matrices))
        self._place_factors(lengths)
        self._sums = [DenseSum(b, world.rank, world.size) for b in (self._first, self._second)]
        largest = max(s.shard_bytes(i) for s in self._sums for i in range(world.size))
        self._scratch = LazyBuffers(world.peers, largest)

    def _place_factors(self, lengths: list[int]) -> None:
        """Make the factors views of the rounds' buffers, so that nothing is copied."""
        p_offset = q_offset = 0
        for matrix in self._matrices:
            p_elems = matrix.rows * matrix.approx_rank
            q_elems = matrix.columns * matrix.approx_rank
            matrix.p = self._first[p_offset : p_offset + p_elems].view(-1, matrix.rows)
            matrix.q = self._second[q_offset : q_offset + q_elems].view(-1, matrix.columns)
            p_offset += p_elems
            q_offset += q_elems
        self._dense = torch.split(self._first[p_offset:], lengths)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The left factors and the vectors; then the right factors."""
        sizes = [4 * buffer.numel() for buffer in (self._first, self._second)]
        rounds = [Round(Verb.ALL_REDUCE, torch.float32, size, dense=True) for size in sizes]
        return tuple(rounds) if self._matrices else (rounds[0],)

    def run(self, gradients: Sequence[torch.Tensor], turn: Turn) -> Rounds:
        """Two power-iteration half steps, a mean after each."""
        for i, place in zip(self._vectors, self._dense, strict=True):
            place.copy_(gradients[i])
        views = [matrix.of(gradients) for matrix in self._matrices]
        for matrix, m in zip(self._matrices, views, strict=True):
            matrix.held = held_back(m, turn)
            if not matrix.held:
                m.add_(matrix.residual, alpha=turn.loss_scale)
            torch.mm(matrix.kept_q, m.t(), out=matrix.p)
        self._first.div_(self._world.size)
        yield AllReduce(self._sums[0], self._scratch)
        for i, place in zip(self._vectors, self._dense, strict=True):
            gradients[i].copy_(place)
        if self._matrices:
            yield from self._second_half(views, turn)

    def _second_half(self, views: Sequence[torch.Tensor], turn: Turn) -> Rounds:
        for matrix, m in zip(self._matrices, views, strict=True):
            lowrank.orthonormalize(matrix.p.numpy())
            torch.mm(matrix.p, m, out=matrix.q)
        self._second.div_(self._world.size)
        yield AllReduce(self._sums[1], self._scratch)
        for matrix, m in zip(self._matrices, views, strict=True):
            self._finish(matrix, m, turn)

    def _finish(self, matrix: _Matrix, m: torch.Tensor, turn: Turn) -> None:
        """Write the product to the gradient, and what it missed to the residual."""
        p, q = matrix.p.numpy(), matrix.q.numpy()
        if not all_finite(q):
            m.fill_(torch.nan)  # some rank overflowed: every rank must see it everywhere
            return
        held = matrix.residual.clone() if matrix.held else None
        lowrank.split_low_rank(m.numpy(), p, q, matrix.residual.numpy(), turn.loss_scale)
        if held is not None:
            matrix.residual.add_(held)
        self._keep_q(matrix, turn)

    def _keep_q(self, matrix: _Matrix, turn: Turn) -> None:
        """Keep Q for the next step; a vector that came out zero would stay zero for ever."""
        q, kept_q = matrix.q.numpy(), matrix.kept_q
        if not lowrank.keep_directions(q, kept_q.numpy()):
            parameter = matrix.segment.parameter
            _fill_random(kept_q.view(-1), parameter, self._world.seed, turn.step + 1)
            lowrank.keep_directions(q, kept_q.numpy())

    def rollback(self, turn: Turn) -> None:
        """Add the product back to the residual: then it is M again."""
        for matrix in self._matrices:
            if all_finite(matrix.q.numpy()):
                product = torch.empty(matrix.rows, matrix.columns)
                lowrank.low_rank_product(matrix.p.numpy(), matrix.q.numpy(), product.numpy())
                matrix.residual.add_(product, alpha=1.0 / turn.loss_scale)


def _fill_random(q: torch.Tensor, parameter: ParameterInfo, seed: int, step: int) -> None:
    """Fill with uniform numbers in [-1, 1), the same on every rank."""
    words = torch.empty(q.numel(), dtype=torch.uint32)
    philox.random_words(
        words.numpy(), seed=seed, stream=_Q_STREAM, step=step, parameter=parameter.index
    )
    q.copy_(words.to(torch.float64).mul_(2.0**-31).sub_(1.0))
