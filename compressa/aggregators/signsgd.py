"""signSGD with majority vote: one bit up, one bit down (Bernstein et al., 2018).

    out = sign(sum_i sign(g_i)),  sign(0) = +1

Each rank sends the signs of every other rank's shard to its owner; the owner counts votes, and
shares the sign of the sum. So every element costs one bit each way for any number of ranks.

An even number of ranks can tie, two ranks as often as not where there is little but noise. A tie
is +1, too, which pushes all tied elements the same way: prefer an odd number of ranks, or
`ties = "alternate"`, which makes them -1 on every other step, so that the push cancels.

What comes out is +1 or -1 whatever the size of the gradient: the learning rate is a step width
of its own, to be chosen by whoever uses this (1e-4 to 1e-3 is usual, with weight decay), and a
decaying one. There is no error feedback and no mean to conserve. (For that see `onebit`, whose
signs carry a scale.) Outputs are +-1 in unscaled units: under a loss scale s they are +-s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

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
from compressa.aggregators.scopes import ScopePayload
from compressa.aggregators.shards import ShardSpans, ShardSum, cut_shards
from compressa.arrays import as_array, scratch_tensor
from compressa.codecs.base import Biased, Codec, Draw
from compressa.collectives.accumulator import Span
from compressa.collectives.choice import ROUND_ROBIN
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import block_count, onebit
from compressa.parameters import Layout

BLOCK = 1024
"""Elements that share a flag: 1 / 128 of a bit each."""


@dataclass(frozen=True, kw_only=True)
class SignSGD(AggregatingCompressor):
    """Majority vote over the ranks' signs; bring your own learning rate.

    Nothing is kept from step to step. A NaN or an infinity on any rank makes its block of 1024
    elements NaN on all of them.

    Args:
        ties: What as many votes for as against give: "plus" is +1, "alternate" is +1 on even
            steps and -1 on odd ones.

    Example:
        >>> SignSGD().payload_bytes((1024, 1024))
        132096
    """

    name: ClassVar[str] = "signsgd"

    ties: Literal["plus", "alternate"] = "plus"

    def __post_init__(self) -> None:
        if self.ties not in ("plus", "alternate"):
            raise ConfigError(f'signsgd: ties must be "plus" or "alternate", got {self.ties!r}')

    @property
    def granularity(self) -> Granularity:
        """Blocks share a flag."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements of a flag."""
        return BLOCK

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """A bit per element, and the flags."""
        return _SIGNS.wire_bytes(math.prod(shape))

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """One vote for the unit."""
        return MajorityVote(self, layout, world)


@dataclass(frozen=True, kw_only=True)
class Signs(Codec):
    """The signs alone: what `SignSGD` sends.

    Wire format of n elements: ceil(n / 1024) flags of one byte, 0, or 1 where a block of 1024 holds
    a NaN or an infinity; then the blocks' signs, each block ceil(m / 8) bytes for its m elements,
    element e at bit e // ceil(m / 8) of byte e % ceil(m / 8), set where x < 0. Decodes to +1, to
    -1, or to NaN where the flag is set.
    """

    name: ClassVar[str] = "sign"
    wire_id: ClassVar[int] = 19

    @property
    def granularity(self) -> Granularity:
        """Blocks share a flag."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """Elements of a flag."""
        return BLOCK

    def wire_bytes(self, elems: int) -> int:
        """Flags and bits."""
        return block_count(elems, BLOCK) + onebit.sign_bytes(elems, BLOCK)

    def bias(self, elems: int) -> Biased:
        """Lengths are not sent, so no error bound holds for all vectors."""
        return Biased(math.inf)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, draw: Draw) -> int:
        """Pack the signs; a block without a mean magnitude is flagged."""
        flags, bits = self._parts(payload, x.numel())
        means = scratch_tensor("sign.means", flags.numel(), torch.float32, x.device)
        onebit.sign_quantize(as_array(x), bits, as_array(means), block=BLOCK)
        torch.ne(means, means, out=flags)  # the mean is NaN then, and differs from itself
        return payload.numel()

    def decode_add(
        self, payload: torch.Tensor, out: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add `weight` with the sign."""
        self.check(payload, out.numel())
        self.count(payload, out, weight=weight)

    def count(
        self, payload: torch.Tensor, out: torch.Tensor, *, weight: float = 1.0, add: bool = True
    ) -> None:
        """Add `weight` with the sign, or write it.

        Args:
            payload: uint8, checked.
            out: float32.
            weight: Magnitude of what is added.
            add: Whether to add, or to write.
        """
        flags, bits = self._parts(payload, out.numel())
        ones = scratch_tensor("sign.ones", flags.numel(), torch.float32, out.device)
        ones.fill_(1.0).masked_fill_(flags.view(torch.bool), torch.nan)
        arrays = bits, as_array(ones), as_array(out)
        onebit.sign_dequantize(*arrays, block=BLOCK, weight=weight, add=add)

    def check_content(self, payload: torch.Tensor, elems: int) -> None:
        """See `Codec.check_content`: every flag; those that a GPU has are waited for."""
        flags, _ = self._parts(payload, elems)
        if flags.numel() and flags.max() > 1:
            raise PayloadError("sign: a flag is neither 0 nor 1")

    @staticmethod
    def _parts(payload: torch.Tensor, elems: int) -> tuple[torch.Tensor, npt.NDArray[np.uint8]]:
        """The flags, and the bits as the kernel takes them."""
        flags = block_count(elems, BLOCK)
        bits: npt.NDArray[np.uint8] = as_array(payload)[flags:]
        return payload[:flags], bits


_SIGNS = Signs()


class MajorityVote(Aggregator):
    """Counts signs in place of the gradients."""

    joinable = True

    def __init__(self, hyper: SignSGD, layout: Layout, world: World) -> None:
        self._hyper = hyper
        self._world = world
        cut = cut_shards(layout, world.size, BLOCK)
        self._shards = [
            ScopePayload(_SIGNS, layout.unit, scopes, world, feedback=None) for scopes in cut
        ]
        self._spans = ShardSpans(cut, [shard.wire_bytes for shard in self._shards])
        self._sent = [shard.buffer() for shard in self._shards]
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One all-reduce that counts."""
        size = sum(shard.wire_bytes for shard in self._shards)
        return (Round(Verb.ALL_REDUCE, torch.uint8, size, algorithm=ROUND_ROBIN),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Send signs, count, share the signs of the sums."""
        for shard, payload in zip(self._shards, self._sent, strict=True):
            shard.encode(gradients, context, payload)
        lean = -0.5 if self._hyper.ties == "alternate" and context.step % 2 else 0.0
        votes = _Votes(self._spans, [*self._sent], gradients, context, self._shards, lean)
        yield AllReduce(votes, self._scratch)
        if self._world.size == 1:
            votes.add(votes.span, ())
        if context.loss_scale != 1.0:
            for gradient in gradients:
                gradient.mul_(context.loss_scale)

    def rollback(self, context: StepContext) -> None:
        """There is no residual."""


@dataclass(eq=False)
class _Votes(ShardSum):
    """The votes of one step, in place of the gradients; the own shard's are counted as they come.

    What is given for the own shard becomes the message of its result.

    Attributes:
        payloads: By owner, what encodes and checks a shard's signs.
        lean: Is added to each sum, so that no vote is a tie; or 0.
    """

    payloads: Sequence[ScopePayload]
    lean: float

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless it is what `sender` owes for the step."""
        self.payloads[self.shards.owners[span]].check(message, self.context, sender)

    def summed(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Count the votes; they are whole numbers, which float32 adds exactly in any order."""
        own, signs = self.payloads[self.shards.owners[span]], self.give(span)
        self._count(span, signs, add=False)
        for message in (*before, *after):
            self._count(span, message, add=True)
        if self.lean:
            for scope in own.scopes:
                scope.of(self.gradients).add_(self.lean)
        result = own.encode(self.gradients, self.context, signs)
        self._count(span, signs, add=False)
        return result

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Write signs in place of the gradients."""
        for span, message in shared:
            self._count(span, message, add=False)

    def _count(self, span: Span, message: torch.Tensor, *, add: bool) -> None:
        """Write a shard's signs in place of its gradients, or add them; they have been checked."""
        for scope, part in self.payloads[self.shards.owners[span]].parts(message):
            _SIGNS.count(part, scope.of(self.gradients), add=add)
