"""SharedScale: agree on a scale, then sum integers.

    s = max over ranks of max|g_i|                round 1, a maximum: 4 bytes a scope
    q_i = round(g_i * levels / s), stochastic     round 2, a sum of integers
    out = (s / (P levels)) sum_i q_i

Since all ranks use one scale, the sum of their integers decodes to the sum of what each decodes
to, without further loss, in any order of summation, by any backend: P levels fits the dtype. Each
rank rounds with random bits of its own, so that errors average out over the ranks.

A NaN or an infinity makes the maximum one on every rank, and with it the whole scope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    Scope,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.arrays import as_array
from compressa.codecs.base import Draw
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.errors import PayloadError
from compressa.kernels.integers import round_to_integers, scale_integers
from compressa.parameters import Layout

Measure = Callable[[torch.Tensor], torch.Tensor]
"""A scope -> a number of it, beside it, so that no GPU is waited for."""

_SUMMED_BY_BACKENDS = (torch.int8, torch.int32)


def largest_magnitude(x: torch.Tensor) -> torch.Tensor:
    """Return max|x|, without dimensions; NaN if there is one."""
    return torch.linalg.vector_norm(x, math.inf) if x.numel() else x.new_zeros(())


def most_levels(dtype: torch.dtype, size: int) -> int:
    """Return the largest integer of which `size` add up without overflow; 0 if there is none.

    Args:
        dtype: Of the sum, an integer's.
        size: Number of ranks.
    """
    return torch.iinfo(dtype).max // size


class SharedScale(Aggregator):
    """Two rounds for a unit: a maximum for each scope, and the integers of all.

    Args:
        layout: The unit.
        world: Ranks and seed.
        levels: The largest integer; `most_levels` is the most that cannot overflow.
        dtype: Of the integers on the wire: int8, int16 or int32.
        stream: Number of the compressor's random bits, its wire id.
        measure: What a scope's scale is the maximum of. Larger values are limited to it.
    """

    joinable = True

    def __init__(
        self,
        layout: Layout,
        world: World,
        *,
        levels: int,
        dtype: torch.dtype,
        stream: int,
        measure: Measure = largest_magnitude,
    ) -> None:
        self._world = world
        self._levels = levels
        self._stream = stream
        self._measure = measure
        self._scopes = whole_scopes(layout)
        self._scales = torch.zeros(len(self._scopes), device=world.device)
        self._integers = torch.zeros(layout.elems, dtype=dtype, device=world.device)
        elems = [scope.segment.elems for scope in self._scopes]
        self._parts = torch.split(self._integers, elems)
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The scales, then the integers."""
        dtype = self._integers.dtype
        size = self._integers.numel() * dtype.itemsize
        dense = dtype in _SUMMED_BY_BACKENDS
        by = None if dense else ROUND_ROBIN
        return (
            Round(Verb.ALL_REDUCE, torch.float32, 4 * len(self._scopes), algorithm=ROUND_ROBIN),
            Round(Verb.ALL_REDUCE, dtype, size, dense=dense, algorithm=by),
        )

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Measure, agree, round, sum, decode."""
        for i, scope in enumerate(self._scopes):
            self._scales[i] = self._measure(scope.of(gradients))
        yield AllReduce(DenseValues(self._scales, maximum=True), self._scratch)
        scales = self._agreed()
        for scope, integers, scale in zip(self._scopes, self._parts, scales, strict=True):
            self._round(scope, scope.of(gradients), scale, integers, context)
        yield AllReduce(DenseValues(self._integers), self._scratch)
        for scope, integers, scale in zip(self._scopes, self._parts, scales, strict=True):
            # In float64, where neither the smallest scale nor the largest integer is rounded.
            step = scale / (self._levels * self._world.size) if math.isfinite(scale) else math.nan
            scale_integers(as_array(integers), step, as_array(scope.of(gradients)))

    def rollback(self, context: StepContext) -> None:
        """There is no residual."""

    def _agreed(self) -> list[float]:
        """Return the scales that came back; the owner's word is input from outside.

        Waits for a GPU, once for all scopes: what rounds takes its factor from the host.
        """
        scales: list[float] = self._scales.tolist()
        if any(scale < 0.0 for scale in scales):
            raise PayloadError("the largest magnitude of all ranks is negative")
        return scales

    def _round(
        self,
        scope: Scope,
        x: torch.Tensor,
        scale: float,
        integers: torch.Tensor,
        context: StepContext,
    ) -> None:
        if not math.isfinite(scale) or scale == 0.0:
            integers.zero_()
            return
        segment = scope.segment
        index, rank = segment.parameter.index, self._world.rank
        draw = Draw(self._world.seed, context.step, index, segment.start, rank)
        noise, levels = draw.private_noise(self._stream), self._levels
        round_to_integers(as_array(x), levels / scale, levels, as_array(integers), noise)
