"""What low-rank aggregators share: hyper-parameters, matrices, and buffers of their factors.

Factors are stored transposed, [approx_rank, rows] and [approx_rank, columns]: the products with
M run along memory then (`compressa.kernels.lowrank`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Le

from compressa.aggregators.base import (
    AggregatingCompressor,
    Aggregator,
    AllReduce,
    Merge,
    Round,
    StepContext,
    Verb,
    World,
    held_back,
)
from compressa.arrays import as_array
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.compressor import Compressor, Granularity
from compressa.errors import ConfigError
from compressa.kernels import lowrank
from compressa.kernels.feedback import all_finite
from compressa.kernels.lowrank import Factors
from compressa.kernels.philox import Noise
from compressa.parameters import Layout, ParameterInfo, Segment

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

_LARGEST = 2.0**100  # rows and columns of 2^54 elements that are no larger have a finite length


@dataclass(frozen=True, kw_only=True)
class LowRank(AggregatingCompressor):
    """A compressor that sends factors of each gradient matrix; has its own error feedback.

    Args:
        approx_rank: Columns of the factors; `rank` will do in a file.
        min_gain: Matrices that would become smaller by less than this factor travel dense.
    """

    iteration_steps: ClassVar[int] = 1
    """Over how many steps the two factors of one power iteration are spread."""

    approx_rank: Annotated[int, Ge(1), Le(1 << 16)] = 4
    min_gain: Annotated[float, Ge(1), Le(10**6)] = 2.0

    def __post_init__(self) -> None:
        if self.approx_rank < 1:
            raise ConfigError(
                f"{self.name}: approx_rank must be at least 1, got {self.approx_rank}"
            )

    @property
    def granularity(self) -> Granularity:
        """A matrix, whole."""
        return Granularity.MATRIX

    @property
    def built_in_feedback(self) -> bool:
        """What the factors miss is kept."""
        return True

    def factor_elems(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers a step sends for a gradient of this shape; 0 if dense."""
        rows, columns = matrix_shape(shape)
        approx_rank = min(self.approx_rank, rows, columns)
        factors = -(-approx_rank * (rows + columns) // self.iteration_steps)
        return factors if factors * self.min_gain <= rows * columns else 0

    def exempt(self, parameter: ParameterInfo, dense: Compressor) -> Compressor:
        """Vectors travel dense beside the factors already: no unit of their own is needed."""
        return dense if self.factor_elems(parameter.shape) else self

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The factors, or the whole where there are none."""
        return 4 * (self.factor_elems(shape) or math.prod(shape))

    def split(self, layout: Layout) -> tuple[list[int], list[int]]:
        """Return the numbers of the segments with factors, and of those that travel dense."""
        matrices: list[int] = []
        vectors: list[int] = []
        for i, segment in enumerate(layout.segments):
            whole = segment.elems == segment.parameter.elems
            factored = whole and self.factor_elems(segment.parameter.shape)
            (matrices if factored else vectors).append(i)
        return matrices, vectors


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, columns) of a parameter seen as a matrix; a vector has one column."""
    if len(shape) < 2:
        return math.prod(shape), 1
    return shape[0], math.prod(shape[1:])


class Matrix:
    """One matrix of a unit, and what it did not send.

    Args:
        gradient: Its number among the unit's gradients.
        segment: The whole parameter.
        approx_rank: Wanted columns of the factors.
        world: Rank, seed and state.

    Attributes:
        held: Whether the residual waits in the step under way.
    """

    def __init__(self, gradient: int, segment: Segment, approx_rank: int, world: World) -> None:
        self.gradient = gradient
        self.segment = segment
        self.rows, self.columns = matrix_shape(segment.parameter.shape)
        self.approx_rank = min(approx_rank, self.rows, self.columns)
        self._kept = world.state.residual(segment.parameter)
        self.residual: F32 = as_array(self._kept).reshape(self.rows, self.columns)
        self.held = False

    def begin(self, gradients: Sequence[torch.Tensor], context: StepContext) -> F32:
        """Return g, which will become M = g + e; M = g while the residual waits.

        Args:
            gradients: The unit's, one a segment: 1-D, contiguous; the matrix's own is float32, and
                g is its memory as float32[rows, columns].
            context: The step. Where it holds zeros, a gradient of zeros has the residual wait.
        """
        g = gradients[self.gradient]
        self.held = held_back(g, context)
        return as_array(g).reshape(self.rows, self.columns)

    def factor_shape(self, right: bool) -> tuple[int, int]:
        """Return [approx_rank, columns], of Q transposed, if `right`; else that of P transposed."""
        return self.approx_rank, self.columns if right else self.rows

    def left(self, g: F32, q: F32, p: F32, context: StepContext) -> None:
        """Set g = M = g + e, and P = M Q.

        Args:
            g: float32[rows, columns], overwritten.
            q: float32[approx_rank, columns], Q transposed.
            p: float32[approx_rank, rows], P transposed; overwritten.
            context: The step.
        """
        lowrank.left_factor(g, q, p, **self._added(context))

    def right(self, g: F32, p: F32, q: F32, context: StepContext) -> None:
        """Set g = M = g + e, and Q = M^T P. See `left`; `p` is read here, and `q` overwritten."""
        lowrank.right_factor(g, p, q, **self._added(context))

    def keep_rest(
        self, m: F32, own: Factors, mean: Factors, verdicts: U32, context: StepContext
    ) -> None:
        """Replace `m` by the mean's P Q^T, and keep what the own one misses of it.

        The own one: what other ranks have more or less of would add up in the residual for ever.
        A residual that waits stays, and takes it in. Where a mean is spoiled, `m` becomes NaN:
        some rank overflowed, and every rank must see it.

        Args:
            m: float32[rows, columns], what `left` or `right` made of the gradient.
            own: This rank's P and Q, transposed.
            mean: What arrives: the same with the mean of one of them.
            verdicts: uint32[approx_rank], of the mean's rows; see `FactorSum.judge`.
            context: The step.
        """
        given = m, *own, self.residual, context.loss_scale
        lowrank.split_low_rank(*given, held=self.held, verdicts=verdicts, out=mean)

    def give_back(self, p: F32, q: F32, context: StepContext) -> None:
        """Add P Q^T to the residual: then it is M again, but for what no factor could ever hold.

        What is beyond what factors hold, or not finite, becomes 0.

        Args:
            p: float32[approx_rank, rows], this rank's P, transposed.
            q: float32[approx_rank, columns], its Q, transposed.
            context: The step that is undone; its loss scale is taken out.
        """
        product = torch.empty_like(self._kept)
        lowrank.low_rank_product(p, q, as_array(product).reshape(self.rows, self.columns))
        self._kept.add_(product, alpha=1.0 / context.loss_scale)
        self._kept.masked_fill_(~(self._kept.abs() <= _LARGEST), 0.0)

    def _added(self, context: StepContext) -> dict[str, Any]:
        """What is added to the gradient."""
        return {"residual": None if self.held else self.residual, "loss_scale": context.loss_scale}


class Directions:
    """Factors that are kept for the next step, the same on every rank, random at first.

    Args:
        kind: What the state calls them.
        parameter: Whose they are.
        shape: [approx_rank, length].
        stream: Of the random numbers; shared, so that every rank starts from the same factors.
        world: Seed and state.

    Attributes:
        values: float32, as one vector.
        rows: float32 of that shape; one direction a row.
    """

    def __init__(
        self, kind: str, parameter: ParameterInfo, shape: tuple[int, int], stream: int, world: World
    ) -> None:
        self._noise = Noise(world.seed, stream, 0, parameter.index)
        self.values = world.state.vector(
            kind, parameter, math.prod(shape), Merge.FIRST, lambda new: self._draw(new, shape)
        )
        self.rows: F32 = as_array(self.values).reshape(*shape)

    def keep(self, factor: F32, verdicts: U32, context: StepContext) -> None:
        """Keep a factor, shaped as `rows`, but for zero rows; see `lowrank.keep_directions`."""
        noise = self._noise._replace(step=context.step + 1)
        lowrank.keep_directions(factor, self.rows, verdicts, noise)

    def _draw(self, zeros: torch.Tensor, shape: tuple[int, int]) -> None:
        rows, verdicts = as_array(zeros).reshape(*shape), _verdicts(shape[0], zeros.device)
        lowrank.judge_rows(rows, verdicts)
        lowrank.keep_directions(rows, rows, verdicts, self._noise)


def _verdicts(count: int, device: torch.device) -> U32:
    """Room for verdicts on so many rows."""
    return as_array(torch.empty(count, dtype=torch.int32, device=device).view(torch.uint32))


class FactorSum:
    """The buffer of one all-reduce: a factor of each matrix, then the vectors.

    Factors and vectors are views of it, so that nothing is copied. Factors that are no multiple of
    16 bytes come after those that are, which begin where a GPU reads 16 bytes at once.

    Args:
        shapes: Of each factor, [approx_rank, length].
        vectors: Elements of each vector.
        world: Rank and size.

    Attributes:
        values: By factor, its part of the buffer: float32[approx_rank * length].
        factors: The same as arrays, float32[approx_rank, length].
        vectors: By vector, its part: float32, as long as the vector.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, int]], vectors: Sequence[int], world: World
    ) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] % 4 != 0)
        self._world = world
        self._buffer = torch.zeros(sum(sizes) + sum(vectors), device=world.device)
        views = torch.split(self._buffer, [*(sizes[i] for i in order), *vectors])
        view_of = dict(zip(order, views, strict=False))
        self.values = [view_of[i] for i in range(len(sizes))]
        self.factors = [as_array(x).reshape(*s) for x, s in zip(self.values, shapes, strict=True)]
        self.vectors = views[len(sizes) :]
        self._verdicts = [_verdicts(shape[0], world.device) for shape in shapes]
        self._scratch = Scratch(world.device)

    @property
    def capacity_bytes(self) -> int:
        """Size of the buffer."""
        return 4 * self._buffer.numel()

    @property
    def round(self) -> Round:
        """The round in which it is summed."""
        return Round(Verb.ALL_REDUCE, torch.float32, self.capacity_bytes, dense=True)

    def mean(self) -> AllReduce:
        """Divide by the number of ranks; return the request that adds up."""
        self._world.divide(self._buffer)
        return AllReduce(DenseValues(self._buffer), self._scratch)

    def judge(self, i: int) -> U32:
        """Return uint32[approx_rank]: `lowrank.judge_rows` of mean i; the next overwrites it."""
        lowrank.judge_rows(self.factors[i], self._verdicts[i])
        return self._verdicts[i]


class Side:
    """One of the two factors of each matrix: this rank's own, their mean, and what is kept of it.

    Args:
        name: What the state calls the kept ones, before "_p" or "_q".
        stream: Of the random numbers that these begin as.
        matrices: Whose they are.
        right: By matrix, whether it is Q; else P.
        vectors: Elements of each vector that travels with them.
        world: Rank, size, seed and state.

    Attributes:
        directions: By matrix, the kept factor; its `rows` are shaped as in `own`.
        sums: Of the means: of each matrix's factor, shaped as in `own`, and of each vector.
        own: By matrix, this rank's factor of this step: float32[approx_rank, columns or rows].
    """

    def __init__(
        self,
        name: str,
        stream: int,
        matrices: Sequence[Matrix],
        right: Sequence[bool],
        vectors: Sequence[int],
        world: World,
    ) -> None:
        shapes = [matrix.factor_shape(q) for matrix, q in zip(matrices, right, strict=True)]
        self.directions = [
            Directions(f"{name}_{'pq'[q]}", matrix.segment.parameter, shape, stream, world)
            for matrix, shape, q in zip(matrices, shapes, right, strict=True)
        ]
        self.sums = FactorSum(shapes, vectors, world)
        self._sent = [torch.zeros_like(values) for values in self.sums.values]
        self.own = [as_array(x).reshape(*s) for x, s in zip(self._sent, shapes, strict=True)]

    def begin(self, i: int) -> F32:
        """Return a kept factor, made orthonormal, in the memory of the own one.

        What is kept stays as it is, so that a step that breaks off leaves the same on every rank.
        Rows that are as long as the last M would overflow in the next product with one.
        """
        self._sent[i].copy_(self.directions[i].values)
        lowrank.orthonormalize(self.own[i])
        return self.own[i]

    def mean(self) -> AllReduce:
        """Copy the own factors to where they are averaged; return the request that adds up."""
        for mean, own in zip(self.sums.values, self._sent, strict=True):
            mean.copy_(own)
        return self.sums.mean()


class LowRankAggregator(Aggregator):
    """All matrices of one unit as factors, and its vectors beside them; rounds are the subclass's.

    Args:
        hyper: Says which segments have factors, and of which rank.
        layout: The unit.
        world: Ranks, seed and state.
    """

    joinable, waits = True, False

    def __init__(self, hyper: LowRank, layout: Layout, world: World) -> None:
        matrices, self._vectors = hyper.split(layout)
        self._matrices = [Matrix(i, layout.segments[i], hyper.approx_rank, world) for i in matrices]
        self._lengths = [layout.segments[i].elems for i in self._vectors]

    @abstractmethod
    def _averaged(self, context: StepContext) -> Side:
        """Return the factors whose means are what arrives, and are kept for the next step."""

    @abstractmethod
    def _factors(self, i: int, averaged: F32, context: StepContext) -> Factors:
        """Return (P, Q) of a matrix, that of `_averaged` given."""

    def _begin(
        self, gradients: Sequence[torch.Tensor], sums: FactorSum, context: StepContext
    ) -> list[F32]:
        """Copy the vectors to where they are averaged; return the matrices' gradients."""
        for i, vector in zip(self._vectors, sums.vectors, strict=True):
            vector.copy_(gradients[i])
        return [matrix.begin(gradients, context) for matrix in self._matrices]

    def _copy_back(self, gradients: Sequence[torch.Tensor], sums: FactorSum) -> None:
        """Write the vectors' means to their gradients."""
        for i, vector in zip(self._vectors, sums.vectors, strict=True):
            gradients[i].copy_(vector)

    def _finish(self, views: Sequence[F32], context: StepContext) -> None:
        """Keep what the own factors missed, and write the means' products to the gradients."""
        side = self._averaged(context)
        for i, m in enumerate(views):
            mean, verdicts = side.sums.factors[i], side.sums.judge(i)
            own, shared = (self._factors(i, each, context) for each in (side.own[i], mean))
            self._matrices[i].keep_rest(m, own, shared, verdicts, context)
            side.directions[i].keep(mean, verdicts, context)

    def rollback(self, context: StepContext) -> None:
        """Add the own product back to the residual: then it is M again. Waits for a GPU."""
        side = self._averaged(context)
        for i, matrix in enumerate(self._matrices):
            if all_finite(side.sums.factors[i]):
                matrix.give_back(*self._factors(i, side.own[i], context), context)
