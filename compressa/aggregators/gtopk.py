"""gTop-k: the largest elements of the ranks' sum, found on a tree of ranks (Shi et al., 2019).

    p_i = g_i + e_i;  s_i = the k largest elements of p_i, divided by P;  e_i = p_i - P s_i
    lg P hops up a binomial tree: s_i = the k largest of s_i + s_j;  e_i gets P times the others
    out = s_0, the root's;  lg P hops down the same tree

Top-k by all-gather brings P k elements to every rank, and a mean with up to P k of them. Here no
message has more than k, whatever P: the busiest rank sends or receives 2 lg P k, and the mean has k
elements, the same on every rank. What it costs is that two ranks at a time decide what is large: an
element of middling size on all ranks may lose to one that is large on a single rank.

What a merge leaves out, and what a narrow wire format loses, returns to the residual of the rank
that merges or sends. So nothing is lost:

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t)

The paper gives back at each rank those of its own elements whose indices are not in the final mask
instead. That loses an element that is left out on one branch of the tree and comes back from
another: its index is in the mask then, but only a part of its values is in the sum.

The sums are of p_i / P, so that they overflow only where the mean does. An element that is not
finite is larger than all others: it leads to a NaN on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le

from compressa.aggregators.base import (
    AggregatingCompressor,
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
)
from compressa.aggregators.sparse_sum import SparseUnit
from compressa.codecs import TopK
from compressa.codecs._sparse import IndexFormat, SparseForm, ValueDtype
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class GTopK(AggregatingCompressor):
    """Keep the k = max(1, round(density * n)) largest elements of the sum; error feedback built in.

    Ties go to the lowest index. Wire, in each hop: what `topk` sends, with values of p / P. On one
    rank it is `topk`, a contraction with delta = k / n. A parameter with a NaN or an infinity sends
    a NaN and zeros.

    Args:
        density: k / n.
        value_dtype: Dtype of the values on the wire; what a cast loses stays in the residual.
        indices: Format of the indices.

    Example:
        >>> GTopK(density=0.01).payload_bytes((1000, 1000))
        50703
    """

    name: ClassVar[str] = "gtopk"

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    value_dtype: ValueDtype = "float32"
    indices: IndexFormat = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"gtopk: density must be in (0, 1], got {self.density}")
        SparseForm(self.name, self.value_dtype, self.indices)  # it checks itself

    @cached_property
    def messages(self) -> TopK:
        """What encodes and decodes messages, and knows k."""
        return _Message(density=self.density, value_dtype=self.value_dtype, indices=self.indices)

    @property
    def granularity(self) -> Granularity:
        """The largest elements are chosen over the whole parameter."""
        return Granularity.PARAMETER

    @property
    def built_in_feedback(self) -> bool:
        """What is not chosen is kept."""
        return True

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Values and indices of one message."""
        return self.messages.wire_bytes(math.prod(shape))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """One round for the unit."""
        return GTopKAggregator(self, layout, world)


@dataclass(frozen=True, kw_only=True)
class _Message(TopK):
    """The same codec under the name that was configured: no payload of topk's passes for one."""

    name: ClassVar[str] = "gtopk"
    wire_id: ClassVar[int] = 26


class GTopKAggregator(Aggregator):
    """All scopes of one unit, in one sum by a tree."""

    def __init__(self, hyper: GTopK, layout: Layout, world: World) -> None:
        self._unit = SparseUnit(hyper.messages, layout, world)
        self._scratch = Scratch(world.device)

    @property
    def takes_half(self) -> bool:
        """The kernels widen."""
        return True

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum, up the tree and down again."""
        size = self._unit.payload.wire_bytes
        return (Round(Verb.ALL_REDUCE, torch.uint8, size, algorithm="tree"),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Select, sum, and write the mean."""
        total = self._unit.begin(gradients, context)
        yield AllReduce(total, self._scratch)
        total.write(gradients)

    def rollback(self, context: StepContext) -> None:
        """Each rank has its own gradient back, whoever left out or got what."""
        self._unit.undo()
