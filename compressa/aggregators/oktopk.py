"""Ok-Topk: the largest elements of the ranks' sum, by regions and thresholds (Li & Hoefler, 2022).

    p_i = g_i + e_i;  s_i = the elements of p_i that reach i's threshold, k at most, divided by P
    split    region r of s_i from each rank i to rank r, which sums it
    gather   out = the elements of the sums that reach a threshold of all, k at most, to all ranks
    e_i = 0 where s_i has an element of out, p_i elsewhere

Top-k by all-gather brings P k elements to every rank. Here a rank sends 2 k words at most, values
and indices, in the split, and 4 k in the gather, and receives 4 k and 2 k: 6 k whatever P.

Thresholds are estimated every `threshold_steps` steps, and what reaches them is taken in between:
the local one as the k-th largest magnitude of p_i, that of all as the k-th largest of the sums, of
which each owner then tells 2 k/P magnitudes at most, 2 k words for each rank. Regions begin where
ranks have equal numbers of selected elements, in the mean: every `region_steps` steps each tells
where its own selection would be cut into 64 equal parts. The mean serves from the next step on, so
that it needs no exchange of its own; until then regions are equal. Where owners have told all that
they may, and it is less than k, both are estimated anew in the next step.

What the paper leaves to balance is bounded here, so that no rank sends or receives more. A message
of the split has 2 k/P elements at most, the largest of its region; the others wait in the residual.
If more than k sums reach the threshold, each owner brings the same share of its own, the largest.
And if an owner has more than twice its share, the elements are cut into equal pieces, which go to
one rank each before they go to all. The paper does so from four times the share on, where its
all-gather passes payloads on in lg P hops; they go directly here.

Since an element of out has been summed over all ranks that sent it, each can tell what of its own
has arrived, and the paper's rule for residuals loses nothing:

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t)

The sums are of p_i / P, so that they overflow only where the mean does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le

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
from compressa.aggregators.oktopk_gather import Gather, Plan
from compressa.aggregators.oktopk_split import Split
from compressa.aggregators.oktopk_state import Limits, ScopeState
from compressa.aggregators.owned_sum import OwnedSum, ScopeSum
from compressa.aggregators.residuals import ChunkResiduals
from compressa.aggregators.shards import ShardSpans
from compressa.aggregators.sparse_messages import Envelope
from compressa.arrays import as_array
from compressa.codecs._sparse import SparseForm, share
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.kernels.feedback import all_finite
from compressa.parameters import Layout

_WIRE_ID = 27
_CHUNK = 1024  # of the pass that takes up the gradient; it changes no result
_FORM = SparseForm("oktopk")


@dataclass(frozen=True, kw_only=True)
class OkTopK(AggregatingCompressor):
    """Keep about k = max(1, round(density * n)) elements of the sum; error feedback built in.

    Ties go to the lowest index. Wire, in both exchanges of the split and of the gather: for each
    parameter in turn a count (u32), and, unless it is 0, float32 values of p / P and their indices
    as in `topk`, counted from where the region begins; each padded to a multiple of 8 bytes. The
    owners of regions share a count alone, then up to 2 k/P float32 magnitudes if thresholds are
    estimated, and 63 indices (u32) if regions are. In a parameter with a NaN or an infinity all is
    NaN, and residuals keep what is finite. It runs on CPUs only.

    Args:
        density: k / n.
        threshold_steps: Thresholds are estimated every so many steps.
        region_steps: Regions are balanced every so many steps.

    Raises:
        ConfigError: A setting is out of range, or gradients are on a GPU.

    Example:
        >>> OkTopK(density=0.01).payload_bytes((1000, 1000))
        116054
    """

    name: ClassVar[str] = "oktopk"

    density: Annotated[float, Gt(0), Le(1)] = 0.01
    threshold_steps: Annotated[int, Ge(1), Le(1 << 20)] = 32
    region_steps: Annotated[int, Ge(1), Le(1 << 20)] = 64

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"oktopk: density must be in (0, 1], got {self.density}")
        for field in ("threshold_steps", "region_steps"):
            if getattr(self, field) < 1:
                raise ConfigError(f"oktopk: {field} must be at least 1, got {getattr(self, field)}")

    @property
    def granularity(self) -> Granularity:
        """The largest elements are chosen over the whole parameter."""
        return Granularity.PARAMETER

    @property
    def built_in_feedback(self) -> bool:
        """What is not delivered is kept."""
        return True

    def kept(self, elems: int) -> int:
        """Return k for a parameter of `elems` elements."""
        return share(self.density, elems)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Half of 3 k values and indices, and 2 k magnitudes: a sum sends its bytes twice."""
        elems = math.prod(shape)
        kept = self.kept(elems)
        return 3 * _FORM.bytes(kept, elems) // 2 + 4 * kept

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two sums for the unit."""
        if world.device.type != "cpu":
            raise ConfigError(
                "oktopk: it sorts and joins lists of indices by NumPy, on CPUs only; for gradients "
                f'on {world.device.type} choose "gtopk", or set engine.device = "cpu"'
            )
        return OkTopKAggregator(self, layout, world)


class OkTopKAggregator(Aggregator):
    """All scopes of one unit, in one split and one gather."""

    def __init__(self, hyper: OkTopK, layout: Layout, world: World) -> None:
        self._hyper, self._world = hyper, world
        scopes = self._scopes = whole_scopes(layout)
        counts = [(scope.segment.elems, hyper.kept(scope.segment.elems)) for scope in scopes]
        limits = [Limits.of(*pair, world.size) for pair in counts]
        self._states = [ScopeState(*pair, world) for pair in zip(scopes, limits, strict=True)]
        self._residuals = ChunkResiduals(scopes, _CHUNK, [own.residual for own in self._states])
        bodies = (
            sum(own.split_bytes for own in limits),
            sum(own.gather_bytes for own in limits),
        )
        self._split, self._gather = (Envelope(_FORM, _WIRE_ID, layout, size) for size in bodies)
        capacity = max(self._split.capacity_bytes, self._gather.capacity_bytes)
        rooms = torch.zeros(world.size, capacity, dtype=torch.uint8)
        self._buffers = list(rooms.unbind())
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Two sums, whose messages are as long as the data want."""
        kind = Verb.ALL_REDUCE, torch.uint8
        return tuple(
            Round(*kind, sum(sizes), algorithm=ROUND_ROBIN, shard_bytes=sizes, exact=False)
            for sizes in map(self._sizes, (self._split, self._gather))
        )

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Select, split and sum, select again and gather, and write the mean."""
        self._residuals.absorb(gradients, context)
        splits = [self._begin(i, context) for i in range(len(self._states))]
        yield from self._exchange(self._split, splits, gradients, context)
        plans = list(map(Plan.of, splits, self._states))
        outs = [scope.of(gradients) for scope in self._scopes]
        gathers = [
            Gather(*parts, self._world.rank, context.loss_scale)
            for parts in zip(splits, plans, self._states, outs, strict=True)
        ]
        yield from self._exchange(self._gather, gathers, gradients, context)
        for split, plan, state, out in zip(splits, plans, self._states, outs, strict=True):
            state.take(out, split.sent)
            if plan.finite:
                state.agree(plan.threshold, plan.knots)
            else:
                out.fill_(torch.nan)

    def rollback(self, context: StepContext) -> None:
        """Put back what was taken."""
        for state in self._states:
            state.undo()

    def _begin(self, i: int, context: StepContext) -> Split:
        hyper, state = self._hyper, self._states[i]
        due = state.due(context.step, hyper.threshold_steps, hyper.region_steps)
        finite = all_finite(as_array(self._residuals.norms[i]))
        return Split(state, due, self._world, finite=finite, held=self._residuals.held[i])

    def _exchange(
        self,
        envelope: Envelope,
        parts: Sequence[ScopeSum],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> Rounds:
        sizes = self._sizes(envelope)
        spans = ShardSpans([()] * len(sizes), sizes)
        own = self._world.rank, parts, envelope, self._buffers
        messages = OwnedSum(spans, gradients, context, *own)
        yield AllReduce(messages, self._scratch)
        if self._world.size == 1:
            messages.add(messages.span, ())  # a rank alone selects of its own sums

    def _sizes(self, envelope: Envelope) -> tuple[int, ...]:
        return (envelope.capacity_bytes,) * self._world.size
