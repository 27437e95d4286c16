"""ScaleCom: one rank in turn picks the indices for all, so that values sum (Chen et al., 2020).

    p_i = g_i + e_i
    I = the indices of the k largest |p_l| of the leader l     round 1: from the leader to all
    out = mean of p_i at I, 0 elsewhere                        round 2: a sum
    e_i = e_i + beta (g_i - what i sent)

The paper's observation is that residuals of different ranks grow alike, so that one rank's largest
elements serve for all (CLT-k: cyclic local top-k). Values then travel as in `randomk`, 4 bytes
each whatever the number of ranks, and the leader's indices besides, by a broadcast in which the
ranks that have them pass them on. The leader of a unit is
rank (step + unit) mod P: units have different ones, so that no rank selects for all of them.

beta = 1 is plain error feedback, and loses nothing: e_i = p_i where nothing was sent, 0 where it
was. Smaller values filter what is kept (the paper takes about 0.1 for very large batches and
learning rates); what they leave out of the residual is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Gt, Le

from compressa.aggregators.base import (
    AggregatingCompressor,
    Aggregator,
    AllReduce,
    Broadcast,
    Round,
    Rounds,
    Scope,
    StepContext,
    Verb,
    World,
    whole_scopes,
)
from compressa.aggregators.residuals import ChunkResiduals
from compressa.arrays import as_array, scratch_tensor
from compressa.codecs._sparse import share
from compressa.codecs.payload import (
    HEADER_BYTES,
    Header,
    check_countable,
    check_header,
    write_header,
)
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import bitpack
from compressa.kernels.feedback import all_finite
from compressa.kernels.topk import scatter_add, select_top_k
from compressa.parameters import Layout

_WIRE_ID = 22
_CHUNK = 1024  # of the pass that takes up the gradient; it changes no result


@dataclass(frozen=True, kw_only=True)
class ScaleCom(AggregatingCompressor):
    """Keep k = max(1, round(density * n)) elements, picked by one rank for all.

    Wire, round 1: from the leader, for each parameter in turn k increasing indices of
    ceil(log2 n) bits in one little-endian bit stream, whole bytes; the others pass it on.
    Round 2: k float32 values in the order of their indices. On the leader a contraction with
    delta = k / n. A parameter with a NaN or an infinity sends k NaNs.

    Args:
        density: k / n.
        beta: How much of what a step leaves behind goes into the residual; 1 loses nothing.

    Example:
        >>> ScaleCom(density=0.01).payload_bytes((1000, 1000))
        52500
    """

    name: ClassVar[str] = "scalecom"

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    beta: Annotated[float, Gt(0), Le(1)] = 1.0

    def __post_init__(self) -> None:
        for field, value in (("density", self.density), ("beta", self.beta)):
            if not 0 < value <= 1:
                raise ConfigError(f"scalecom: {field} must be in (0, 1], got {value}")

    @property
    def granularity(self) -> Granularity:
        """The largest elements are chosen over the whole parameter."""
        return Granularity.PARAMETER

    @property
    def built_in_feedback(self) -> bool:
        """What is not chosen is kept."""
        return True

    @property
    def conserves_mass(self) -> bool:
        """A filter leaves something out."""
        return self.beta == 1.0

    def kept(self, elems: int) -> int:
        """Return k for a parameter of `elems` elements."""
        return share(self.density, elems)

    def index_bytes(self, elems: int) -> int:
        """Return the bytes that the indices of a parameter of `elems` elements take on the wire."""
        return bitpack.packed_bytes(self.kept(elems), bitpack.index_width(elems))

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Values, and half of the indices: a sum sends its bytes twice, a broadcast once."""
        elems = math.prod(shape)
        return 4 * self.kept(elems) + self.index_bytes(elems) // 2

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return ScaleComAggregator(self, layout, world)


class _Selection:
    """The indices of one scope, the same on every rank, and this rank's values there.

    Attributes:
        indices: uint32[k], as the leader chose them.
        mean: float32[k], part of the sum's buffer.
        sent: float32[k], what was taken out of the residual, unscaled.
        taken: Whether anything was.
    """

    def __init__(self, scope: Scope, mean: torch.Tensor) -> None:
        self.scope = scope
        self._bits = torch.zeros(mean.numel(), dtype=torch.int32, device=mean.device)
        self.indices: npt.NDArray[np.uint32] = as_array(self._bits).view(np.uint32)
        self.mean = mean
        self.sent = torch.zeros_like(mean)
        self.taken = False
        self._positions = torch.zeros_like(self._bits, dtype=torch.int64)

    @property
    def positions(self) -> torch.Tensor:
        """The indices as torch takes them.

        Where a GPU's answers come later, they may not be what they should be, and torch would write
        beside the array.
        """
        last = self.scope.segment.elems - 1
        return self._positions.copy_(self._bits).bitwise_and_(0xFFFFFFFF).clamp_(max=last)


class ScaleComAggregator(Aggregator):
    """All scopes of one unit: the leader's indices, then everybody's values."""

    def __init__(self, hyper: ScaleCom, layout: Layout, world: World) -> None:
        self._hyper = hyper
        self._layout = layout
        self._world = world
        scopes = whole_scopes(layout)
        index_bytes = [hyper.index_bytes(scope.segment.elems) for scope in scopes]
        check_countable(hyper.name, layout.elems, sum(index_bytes))
        kept = [scope.residual(world.state) for scope in scopes]
        self._residuals = ChunkResiduals(scopes, _CHUNK, kept)
        counts = [hyper.kept(scope.segment.elems) for scope in scopes]
        self._values = torch.zeros(sum(counts), device=world.device)
        parts = torch.split(self._values, counts)
        self._selections = [_Selection(*pair) for pair in zip(scopes, parts, strict=True)]
        self._index_bytes = index_bytes
        size = HEADER_BYTES + sum(self._index_bytes)
        self._payload = torch.zeros(size, dtype=torch.uint8, device=world.device)
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The leader's indices, and a sum."""
        size = 4 * self._values.numel()
        return (
            Round(Verb.BROADCAST, torch.uint8, self._payload.numel()),
            Round(Verb.ALL_REDUCE, torch.float32, size, dense=True),
        )

    def leader(self, context: StepContext) -> int:
        """Return the rank that picks the indices of a step."""
        return (context.step + self._layout.unit) % self._world.size

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Pick or hear the indices, and sum the values there."""
        self._residuals.absorb(gradients, context, clear=self._hyper.beta == 1.0)
        leader = self.leader(context)
        if leader == self._world.rank:
            self._pick(gradients, context)
        yield Broadcast(self._payload, leader)
        if leader != self._world.rank:
            self._read_indices(leader, context)
        for i, finite in enumerate(self._finite()):
            self._take(i, finite)
        self._world.divide(self._values)
        yield AllReduce(DenseValues(self._values), self._scratch)
        for i, chosen in enumerate(self._selections):
            out = chosen.scope.of(gradients)
            if self._hyper.beta < 1.0:
                self._filter(i, out, context)
            arrays = chosen.indices, as_array(chosen.mean), as_array(out)
            scatter_add(*arrays, weight=context.loss_scale)

    def rollback(self, context: StepContext) -> None:
        """Put back what was taken; a filter took a part only."""
        for i, chosen in enumerate(self._selections):
            if chosen.taken:
                beta = self._hyper.beta
                self._residuals[i].index_add_(0, chosen.positions, chosen.sent, alpha=beta)

    def _finite(self) -> list[bool]:
        """Whether this rank's part of each scope is; waits for a GPU, once for all scopes."""
        norms = self._residuals.norms
        if self._values.is_cuda:
            known: list[bool] = torch.stack([part.isfinite().all() for part in norms]).tolist()
            return known
        return [all_finite(as_array(part)) for part in norms]

    def _pick(self, gradients: Sequence[torch.Tensor], context: StepContext) -> None:
        """Choose the indices, and write the payload."""
        body = self._payload[HEADER_BYTES:]
        for i, packed in enumerate(torch.split(body, self._index_bytes)):
            self._select(i, gradients)
            width = bitpack.index_width(self._selections[i].scope.segment.elems)
            bitpack.pack_bits(self._selections[i].indices, width, as_array(packed))
        write_header(self._payload, self._header(context))

    def _select(self, i: int, gradients: Sequence[torch.Tensor]) -> None:
        """Find the largest elements; any will do where there is nothing to choose from."""
        chosen = self._selections[i]
        held = self._residuals.held[i]
        p = chosen.scope.of(gradients) if held else self._residuals[i]
        values = scratch_tensor("scalecom.values", chosen.indices.size, torch.float32, p.device)
        select_top_k(as_array(p), chosen.indices.size, chosen.indices, as_array(values))

    def _read_indices(self, leader: int, context: StepContext) -> None:
        """Check the leader's payload before anything in it is used."""
        check_header(self._payload, self._header(context), leader, exact=True)
        body = self._payload[HEADER_BYTES:]
        for chosen, part in zip(
            self._selections, torch.split(body, self._index_bytes), strict=True
        ):
            elems = chosen.scope.segment.elems
            bitpack.unpack_bits(as_array(part), bitpack.index_width(elems), chosen.indices)
            try:
                bitpack.check_increasing(chosen.indices, elems)
            except ValueError as error:
                raise PayloadError(f"scalecom, from rank {leader}: {error}") from error

    def _header(self, context: StepContext) -> Header:
        layout, body_bytes = self._layout, sum(self._index_bytes)
        return Header(_WIRE_ID, context.epoch, context.step, layout.unit, layout.elems, body_bytes)

    def _take(self, i: int, finite: bool) -> None:
        """Take the chosen values out of the residual, but for what a filter leaves there."""
        chosen, residual = self._selections[i], self._residuals[i]
        chosen.taken = finite and not self._residuals.held[i]
        if chosen.taken:
            positions = chosen.positions
            torch.index_select(residual, 0, positions, out=chosen.sent)
            left = torch.mul(chosen.sent, 1.0 - self._hyper.beta, out=chosen.mean)
            residual.index_copy_(0, positions, left)
            chosen.mean.copy_(chosen.sent)
        else:
            chosen.mean.fill_(0.0 if self._residuals.held[i] else torch.nan)

    def _filter(self, i: int, x: torch.Tensor, context: StepContext) -> None:
        """Leave only beta of the gradient in the residual, and the gradient's memory empty."""
        if self._selections[i].taken:
            self._residuals[i].sub_(x, alpha=(1.0 - self._hyper.beta) / context.loss_scale)
        x.zero_()
