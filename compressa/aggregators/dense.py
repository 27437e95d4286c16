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
from compressa.collectives.dense import DenseValues
from compressa.collectives.region import Region
from compressa.collectives.scratch import Scratch
from compressa.parameters import Layout


class Dense(Aggregator):
    """Divide by the number of ranks, then sum, as DistributedDataParallel does."""

    waits = False
    begins_quick = True

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
        """One all-reduce, where the gradients lie unless it needs them as one vector."""
        self._region.lay(gradients)
        self.ends_quick = self._region.in_place  # as in the last step
        yield AllReduce(DenseValues(self._region, divisor=self._world.size), self._scratch)
        self._region.split()

    def rollback(self, context: StepContext) -> None:
        """There is no residual."""
