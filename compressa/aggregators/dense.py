"""Dense: the uncompressed mean, in the gradients' own dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
)
from compressa.aggregators.region import Region
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.parameters import Layout


class Dense(Aggregator):
    """Divide by the number of ranks, then sum, as DistributedDataParallel does."""

    waits = False

    def __init__(self, layout: Layout, world: World) -> None:
        self._layout = layout
        self._world = world
        self._region = Region(layout.elems, layout.dtype, world.device)
        self._scratch = Scratch(world.device)

    @property
    def values_dtype(self) -> torch.dtype:
        """The gradients' own."""
        return self._layout.dtype

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum."""
        size = self._layout.elems * self._layout.dtype.itemsize
        return (Round(Verb.ALL_REDUCE, self._layout.dtype, size, dense=True),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """One all-reduce, in place where the segments lie together in memory."""
        flat = self._region.join(gradients)
        # Gradients that lay together in one step, as those of a bucket mostly do, will in the next.
        self.begins_quick = self.ends_quick = self._region.in_place
        yield AllReduce(DenseValues(flat, divisor=self._world.size), self._scratch)
        self._region.split()

    def rollback(self, context: StepContext) -> None:
        """There is no residual."""
