"""THC: 4-bit codes whose look-up integers sum while compressed (Li et al., 2024).

For each chunk p of d = `chunk` elements of a rank's p_i = g_i + e_i:

    s = max over ranks of ||p_i||                      round 1: 4 bytes a chunk
    v = H D p                                          a rotation, D random signs that all share
    c = code of v / s, stochastic                      to the owner of the shard: 4 bits
    S = sum over ranks of T[c]                         in integers; from the owner: 8 or 16 bits
    out = D H (2 S - P levels) (clip s / (P levels)) / d
    e_i = p_i - the same with T[c_i] for S and 1 for P

(H is unnormalised here.) After the rotation the coordinates are nearly normal whatever p was, so
one table T of 16 integers serves all (`lookup_table`). Ranks clip and round against the same s, so
that the sum of their integers decodes to the sum of what each decodes to: owners add integers and
never decode, encode or round again. Stochastic rounding is unbiased; what is clipped, beyond
`clip` standard deviations, is not, and comes back through the residual.

The paper shares one norm for a whole gradient. A norm per chunk costs 4 / chunk bytes an element,
follows gradients whose parts differ in size, and lets a parameter be cut at chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

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
from compressa.aggregators.lookup_table import best_table, largest_error
from compressa.aggregators.residuals import ChunkResiduals
from compressa.aggregators.rotated import (
    WIRE_ID,
    RotatedPayloads,
    RotatedScope,
    RotatedSum,
    Sums,
)
from compressa.aggregators.shards import ShardSpans, cut_shards
from compressa.arrays import as_array
from compressa.codecs.base import Biased, Draw, Range
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import block_count, philox
from compressa.kernels.hadamard import Codebook
from compressa.parameters import Layout

_SIGN_STREAM = 0x5448  # "TH": shared
_LARGEST = 2.0**94  # of no chunk with smaller elements the norm passes 2**100; see kernels.hadamard
_CHUNKS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, kw_only=True)
class THC(AggregatingCompressor):
    """Rotate, send 4-bit codes, sum their integers; error feedback built in.

    Wire, round 1: float32 norms of all chunks. Round 2, after a header each: to the owner the codes
    of its shard, two to a byte, planar in each chunk (byte i has element i low and element i + d/2
    high); from the owner the sums of integers, uint8 where P levels <= 255, else uint16. The
    last chunk of a parameter is padded with zeros to a power of two, at least 32.

    A chunk with an element that is not finite on some rank, or larger than 2^94, becomes NaN on
    all; what the residual has of such an element stays as it was. A chunk shorter than 2^-100 on
    all ranks is not sent.

    Args:
        levels: The largest integer of the table. More of them fit the normal distribution
            better, fewer let more ranks add up in 8 bits: 255 // levels.
        clip: Where coordinates are clipped, in standard deviations.
        chunk: Elements that are rotated together.
        feedback: Whether to keep what was not sent.

    Example:
        >>> THC().payload_bytes((1000, 1000))
        754244
    """

    name: ClassVar[str] = "thc"

    levels: Annotated[int, Ge(15), Le(255)] = 30
    clip: Annotated[float, Gt(0), Le(16)] = 2.5
    chunk: Literal[256, 512, 1024, 2048, 4096] = 1024
    feedback: bool = True

    def __post_init__(self) -> None:
        if not 15 <= self.levels <= 255:
            raise ConfigError(f"thc: levels must be from 15 to 255, got {self.levels}")
        if not 0 < self.clip <= 16:
            raise ConfigError(f"thc: clip must be in (0, 16], got {self.clip}")
        if self.chunk not in _CHUNKS:
            raise ConfigError(f"thc: chunk must be one of {_CHUNKS}, got {self.chunk}")

    @property
    def granularity(self) -> Granularity:
        """Chunks are rotated one by one."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """A chunk."""
        return self.chunk

    @property
    def built_in_feedback(self) -> bool:
        """Unless it is switched off here."""
        return self.feedback

    @property
    def book(self) -> Codebook:
        """The table and its chunks."""
        return Codebook(table=best_table(self.levels, self.clip), clip=self.clip, chunk=self.chunk)

    def sums_dtype(self, size: int) -> torch.dtype:
        """Return what the integers of `size` ranks are summed in.

        Raises:
            ConfigError: They could overflow.
        """
        if size * self.levels > 65535:
            raise ConfigError(
                f"thc: integers up to {self.levels} of {size} ranks do not add up in 16 bits; "
                f"use levels = {65535 // size} or fewer"
            )
        return torch.uint8 if size * self.levels <= 255 else torch.uint16

    def bias_of_mean(self, elems: int, size: int) -> Biased | None:
        """What rounding and clipping add up to without feedback; with it, no step stands alone.

        It grows with the ranks: one whose gradient is 0 still rounds against the norm of all, to
        one of the two codes in the middle.
        """
        if self.feedback:
            return None
        range_ = Range(2.0**-100, _LARGEST)
        return Biased(largest_error(self.book.table, self.levels, self.clip, size), range_)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Norms, and the mean of both ways of round 2 while sums have 8 bits: 6 bits an element."""
        elems = math.prod(shape)
        return 4 * block_count(elems, self.chunk) + 3 * self.book.rotated_elems(elems) // 4

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Two rounds for the unit."""
        return THCAggregator(self, layout, world)


class THCAggregator(Aggregator):
    """All scopes of one unit; see this module.

    Args:
        hyper: The hyper-parameters.
        layout: The unit.
        world: Ranks, and the state that has the residuals.

    Raises:
        ConfigError: The integers of so many ranks do not add up in 16 bits.
    """

    joinable = True

    def __init__(self, hyper: THC, layout: Layout, world: World) -> None:
        self._hyper = hyper
        self._layout = layout
        self._world = world
        book, scopes = hyper.book, whole_scopes(layout)
        elems = [scope.segment.elems for scope in scopes]
        kept = (
            [scope.residual(world.state) for scope in scopes]
            if hyper.feedback
            else [torch.zeros(n, device=world.device) for n in elems]
        )
        self._residuals = ChunkResiduals(scopes, hyper.chunk, kept, _LARGEST)
        counts = [norms.numel() for norms in self._residuals.norms]
        self._norms = torch.zeros(sum(counts), device=world.device)
        self._signs = [_buffer(book.rotated_elems(n) // 32, torch.uint32, world) for n in elems]
        norms_of = torch.split(self._norms, counts)
        cut = cut_shards(layout, world.size, hyper.chunk)
        self._shards: list[list[RotatedScope]] = []
        for part in cut:
            shard: list[RotatedScope] = []
            for scope in part:
                low = shard[-1].high if shard else 0
                whole = norms_of[scope.gradient], self._signs[scope.gradient]
                shard.append(RotatedScope(scope, book, low, *whole))
            self._shards.append(shard)
        dtype = hyper.sums_dtype(world.size)
        self._wire = RotatedPayloads(layout.unit, self._shards, hyper.levels, world.size, dtype)
        self._spans = ShardSpans(cut, self._wire.sealed_bytes)
        self._allocate()

    def _allocate(self) -> None:
        """Make the payloads."""
        world, wire = self._world, self._wire
        self._sent = [_buffer(size, torch.uint8, world) for size in wire.sent_bytes]
        self._sealed = _buffer(wire.sealed_bytes[world.rank], torch.uint8, world)
        self._integers: Sums = as_array(_buffer(max(wire.coordinates), torch.uint8, world))
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Two sums by owners: float32 norms of all chunks, then uint8 payloads.

        The second one's `capacity_bytes` counts the sums, which are at least as long as the codes.
        """
        norms_bytes, sums_bytes = 4 * self._norms.numel(), sum(self._wire.sealed_bytes)
        return (
            Round(Verb.ALL_REDUCE, torch.float32, norms_bytes, algorithm=ROUND_ROBIN),
            Round(Verb.ALL_REDUCE, torch.uint8, sums_bytes, algorithm=ROUND_ROBIN),
        )

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Agree on norms, send codes, hear sums; afterwards `gradients` hold the mean.

        Args:
            gradients: One 1-D contiguous float32 tensor per segment, overwritten.
            context: The step. Where it holds zeros, a gradient that is all zero leaves its residual
                as it is.

        Raises:
            PayloadError: The largest norm of all ranks came negative, or another rank's codes or
                sums are not what it owes: header, length, or an integer that is too large.
        """
        if not self._hyper.feedback:
            self._residuals.clear()
        self._residuals.absorb(gradients, context)
        self._norms.copy_(self._residuals.all_norms.sqrt())
        yield AllReduce(DenseValues(self._norms, maximum=True), self._scratch)
        if bool((self._norms < 0).any()):  # the owners' word; waits for a GPU
            raise PayloadError("thc: the largest norm of all ranks is negative")
        self._draw_signs(context)
        for shard, payload in enumerate(self._sent):
            for part in self._shards[shard]:
                self._encode(part, payload, gradients, context)
            self._wire.seal(shard, payload, context)
        integers = RotatedSum(
            self._spans, [*self._sent], gradients, context, self._wire, self._sealed
        )
        yield AllReduce(integers, self._scratch)
        if self._world.size == 1:
            integers.add(integers.span, ())

    def rollback(self, context: StepContext) -> None:
        """Decode the own codes, and add them back to the residuals; nothing without feedback."""
        if self._hyper.feedback:
            for parts, payload in zip(self._shards, self._sent, strict=True):
                for part in parts:
                    self._add_own(part, payload, 1.0)

    def _draw_signs(self, context: StepContext) -> None:
        for segment, signs in zip(self._layout.segments, self._signs, strict=True):
            philox.random_words(
                as_array(signs),
                seed=self._world.seed,
                stream=_SIGN_STREAM,
                step=context.step,
                parameter=segment.parameter.index,
                start=segment.start // 32,
            )

    def _encode(
        self,
        part: RotatedScope,
        payload: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> None:
        """Write the codes of p, and keep what they miss."""
        scope, rank = part.scope, self._world.rank
        index, start = scope.segment.parameter.index, scope.segment.start
        noise = Draw(self._world.seed, context.step, index, start, rank).private_noise(WIRE_ID)
        # Where the residual waits, p is the gradient, which is zero.
        held = self._residuals.held[scope.gradient]
        part.encode(scope.of(gradients) if held else self._kept(part), payload, noise)
        if self._hyper.feedback:
            self._add_own(part, payload, -1.0)

    def _add_own(self, part: RotatedScope, payload: torch.Tensor, weight: float) -> None:
        """Add `weight` times what the own codes decode to to the residual."""
        part.look_up(payload, self._integers, add=False)
        part.decode(self._integers, self._kept(part), 1, weight, add=True)

    def _kept(self, part: RotatedScope) -> torch.Tensor:
        """The residual of a part."""
        scope = part.scope
        whole = self._residuals[scope.gradient]
        return whole[scope.start : scope.start + scope.segment.elems]


def _buffer(elems: int, dtype: torch.dtype, world: World) -> torch.Tensor:
    return torch.zeros(elems, dtype=dtype, device=world.device)
