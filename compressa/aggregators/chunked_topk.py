"""Chunked top-k: whole chunks, the same on every rank, so that values sum (Han et al., 2024).

    p_i = g_i + e_i, in chunks of `chunk` elements
    s_c = sum over ranks of ||p_i[c]||^2                  round 1
    the k chunks of largest s_c, ties to the lowest; out = mean of p_i there, 0 elsewhere
                                                          round 2
    e_i = p_i where it was not chosen, 0 where it was

Plain top-k sends indices, and its payloads grow together when they are added up; here the ranks
agree on the chunks first, for 4 bytes a chunk, and then any all-reduce can sum the values. What it
costs is that a chunk goes whole: gradients whose large elements lie alone are served better by
`topk`.

Replicas agree bit for bit: the norms are summed by one owner each, and the choice among them is
exact. A chunk that is not finite on some rank has a norm that is not, so no rank chooses, and
all get NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Le, MultipleOf

from compressa.aggregators.base import (
    AggregatingCompressor,
    Aggregator,
    AllReduce,
    Round,
    Rounds,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.residuals import ChunkResiduals
from compressa.aggregators.scope_calls import Call, ScopeCalls
from compressa.arrays import as_array
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.kernels import block_count
from compressa.kernels.chunks import add_chunks, take_largest_chunks
from compressa.parameters import Layout

_MOST_NORM = 2.0**127  # half the largest float32, so that no rounding of a sum passes it


@dataclass(frozen=True, kw_only=True)
class ChunkedTopK(AggregatingCompressor):
    """Keep the max(1, round(density * chunks)) chunks of largest norm; error feedback built in.

    Wire, of a parameter of n elements in m = ceil(n / chunk) chunks, k of them kept: m float32 of
    squared norms, then k chunks of float32 values in the order of their numbers, min(n, chunk)
    each, a short last one padded with zeros. On one rank a contraction with delta = k / m.

    Args:
        density: k / m.
        chunk: Elements of a chunk. Smaller ones choose better, and cost 4 / chunk bytes an element.

    Example:
        >>> ChunkedTopK(density=0.01, chunk=256).payload_bytes((1000, 1000))
        55564
    """

    name: ClassVar[str] = "chunked_topk"

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    chunk: Annotated[int, Ge(64), Le(1024), MultipleOf(64)] = 256

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"chunked_topk: density must be in (0, 1], got {self.density}")
        if not (64 <= self.chunk <= 1024 and self.chunk % 64 == 0):
            raise ConfigError(
                f"chunked_topk: chunk must be a multiple of 64 from 64 to 1024, got {self.chunk}"
            )

    @property
    def granularity(self) -> Granularity:
        """The largest chunks are chosen over the whole parameter."""
        return Granularity.PARAMETER

    @property
    def built_in_feedback(self) -> bool:
        """What is not chosen is kept."""
        return True

    def kept(self, elems: int) -> int:
        """Return k for a parameter of `elems` elements."""
        chunks = block_count(elems, self.chunk)
        return min(chunks, max(1, round(self.density * chunks)))

    def sent_elems(self, elems: int) -> int:
        """Return how many values are sent: those of k chunks."""
        return self.kept(elems) * min(self.chunk, elems)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Norms and values."""
        elems = math.prod(shape)
        return 4 * (block_count(elems, self.chunk) + self.sent_elems(elems))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return ChunkedTopKAggregator(self, layout, world)


class ChunkedTopKAggregator(Aggregator):
    """All scopes of one unit: their norms in one all-reduce, their values in another."""

    joinable = True
    waits = False

    def __init__(self, hyper: ChunkedTopK, layout: Layout, world: World) -> None:
        self._world = world
        self._scopes = whole_scopes(layout)
        elems = [scope.segment.elems for scope in self._scopes]
        self._chunks = [min(hyper.chunk, n) for n in elems]
        parts = [scope.residual(world.state) for scope in self._scopes]
        self._residuals = ChunkResiduals(self._scopes, hyper.chunk, parts)
        self._kept_of = [as_array(part) for part in parts]
        counts = [norms.numel() for norms in self._residuals.norms]
        self._norms = torch.zeros(sum(counts), device=world.device)
        self._norms_of = _parts(self._norms, counts)
        sizes = [hyper.sent_elems(n) for n in elems]
        self._values = torch.zeros(sum(sizes), device=world.device)
        self._sent = torch.zeros_like(self._values)
        self._values_of = _parts(self._values, sizes)
        self._sent_of = _parts(self._sent, sizes)
        kept = [hyper.kept(n) for n in elems]
        no_chunks = torch.full((sum(kept),), -1, dtype=torch.int32, device=world.device)
        self._chosen = [part.view(np.uint32) for part in _parts(no_chunks, kept)]
        self._scratch = Scratch(world.device)
        self._calls = ScopeCalls(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Two sums: norms and values."""
        sizes = (4 * self._norms.numel(), 4 * self._values.numel())
        first, second = (Round(Verb.ALL_REDUCE, torch.float32, n, dense=True) for n in sizes)
        return first, second

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Measure, agree on the chunks, sum their values."""
        self._residuals.absorb(gradients, context)
        self._share_of_norms()
        yield AllReduce(DenseValues(self._norms), self._scratch)
        self._calls.run(("take", *self._residuals.held), self._taking)
        self._world.divide(self._sent, self._values)
        yield AllReduce(DenseValues(self._values), self._scratch)
        out = [scope.of(gradients) for scope in self._scopes]
        key = "add", context.loss_scale, *(x.data_ptr() for x in out)
        self._calls.run(key, lambda: self._adding(out, context.loss_scale))

    def rollback(self, context: StepContext) -> None:
        """Put back what was taken."""
        for i, chosen in enumerate(self._chosen):
            arrays = self._sent_of[i], chosen, self._kept_of[i]
            add_chunks(*arrays, chunk=self._chunks[i], missing="skip")

    def _share_of_norms(self) -> None:
        """Write the norms to the wire's float32, where no finite sum may overflow."""
        most = _MOST_NORM / self._world.size
        self._norms.copy_(self._residuals.all_norms).clamp_(max=most)  # a NaN stays

    def _taking(self) -> list[Call]:
        """For each scope: choose its chunks, and move their values out of the residual."""
        arrays = self._norms_of, self._kept_of, self._chosen, self._sent_of
        each = zip(*arrays, self._chunks, self._residuals.held, strict=True)
        return [partial(take_largest_chunks, *own, chunk=chunk, hold=h) for *own, chunk, h in each]

    def _adding(self, out: Sequence[torch.Tensor], weight: float) -> list[Call]:
        """For each scope: add the mean, or NaN if some rank overflowed and no chunk was chosen."""
        each = zip(self._values_of, self._chosen, map(self._calls.array, out), strict=True)
        options: dict[str, Any] = {"weight": weight, "missing": "nan"}
        return [
            partial(add_chunks, *own, chunk=chunk, **options)
            for own, chunk in zip(each, self._chunks, strict=True)
        ]


def _parts(values: torch.Tensor, sizes: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Parts of so many elements each, as kernels take them."""
    return [as_array(part) for part in torch.split(values, list(sizes))]
