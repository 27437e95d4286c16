"""PerHop: an all-reduce whose messages are decoded, added and encoded anew at every hop.

Every rank puts its gradient, with its residual, into a sum over the ranks, which goes by any
algorithm of `compressa.collectives.algorithms`: what each of its hops carries is a codec's payload.
Sums travel, not means; in the end every rank divides by the number of ranks P:

    p_i = g_i + e_i;  out = S / P, with S the sum of all p_i but for what messages have lost
    e_i = the sum of v - decode(c) over the messages c that rank i makes of values v

A message is a partial sum that a rank gives away, or a result that it seals. Ranks that hold the
same bits make the same message of them, in the name of one, and only that one keeps what it loses.
So S + sum_i e_i(t+1) = sum_i p_i, and nothing is lost:

    sum_t out_t + (1/P) sum_i e_i(T) = (1/P) sum_t sum_i g_i(t)

A change of the number of ranks redistributes these residuals as any others.

How far out is from the mean depends on how many messages an element passes through, and on how
large what they carry has become. Let a codec err by at most e max|x| within a block, and let M be
the mean over the ranks of the block's max|p_i|. Then out errs by at most e M for each hop that sums
(partial sums of one hop never share an addend), and by e M for the result. To first order in e:

    exchange                                  bound     squared error, independent addends
    scatter_reduce, round_robin               2 e M     2 P - 1
    master_worker                             2 e M     2 P - 1
    all_to_all                                  e M     P
    ring                               P e M            P (P - 1) / 2 + P
    halving_doubling, tree      (lg P + 1) e M          (P / 2) lg P + P
    recursive_doubling               lg P e M           P lg P

The last column counts, in the squared error of one rank's own encode, what is in S: P - 1 partial
sums, of k addends each, whose errors have the variance of k, and the result with that of P. So 8
ranks err, in units of what a scatter-reduce errs, by the root of the ratio. Measured on normally
distributed gradients of 8 ranks, as a tensor's norm:

    exchange              due     int8    int4    fp8     onebit
    all_to_all            0.73    0.73    0.73    0.73    0.81
    halving_doubling      1.15    1.15    1.15    1.16    1.07
    tree                  1.15    1.12    1.15    1.15    1.06
    recursive_doubling    1.26    1.25    1.26    1.28    1.23
    ring                  1.55    1.51    1.53    1.55    1.12

A codec whose noise is longer than what it carries (qsgd, terngrad) hands that on, and errs by more:
2.1 and 2.0 in a ring. With error feedback residuals settle within some tens of steps, in the same
ratios; only those of int2, which loses nearly all in each message, settle higher (at 6 times those
of a scatter-reduce in a ring of 8). In exchange a rank talks to its neighbours only, or to lg P
others, and no step has P - 1 messages at once.

With `hierarchical`, messages within a host are dense, or of 16 bits. Across hosts sums go as by
round_robin, with hosts for ranks: H hosts of g ranks each add up g (H - 1) + P in place of 2 P - 1.

It takes codecs that any rank can cut (granularity element or block) and whose payloads have a fixed
size: fp16, bf16, fp8, int8, int4, int2, natural, qsgd, terngrad, onebit, demo, and those of other
packages that declare both. Sums of fp16 overflow where the sum does, not the mean.
"""

from __future__ import annotations

import math
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
from compressa.aggregators.encoded_sum import EncodedSum, SpanPayloads
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.hop_residuals import HopResiduals
from compressa.codecs.base import Codec, Fixed
from compressa.codecs.bf16 import Bf16
from compressa.codecs.fp16 import Fp16
from compressa.codecs.none import NoCompression
from compressa.collectives.scratch import Scratch
from compressa.compressor import Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout

_INSIDE: dict[str, Codec] = {"none": NoCompression(), "bf16": Bf16(), "fp16": Fp16()}


class PerHop(Aggregator):
    """A sum that travels in a codec's payloads; see this module.

    Args:
        codec: Its payloads have a fixed size, and it can be cut.
        layout: The unit.
        world: Ranks, state, and what makes the messages within a host.
        feedback: How what is lost is kept; None to lose it.

    Raises:
        ConfigError: The codec can not be used at every hop, or the velocity of momentum not here.
    """

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        reason = why_not(codec)
        if reason:
            raise ConfigError(
                f'{codec.name}: {reason}, so exchange.kind = "per_hop" does not fit; use "auto" or '
                '"all_gather"'
            )
        if feedback is not None and feedback.momentum is not None:
            raise ConfigError(
                "momentum: where sums are encoded at every hop no rank knows what became of its "
                'own gradient, and so of its velocity; use exchange.kind = "auto" or "all_gather"'
            )
        self._world = world
        self._residuals = None if feedback is None else HopResiduals(layout, feedback, world)
        align = math.lcm(codec.block_elems, feedback.block_elems if feedback else 1)
        self._across, self._inside = (
            SpanPayloads(each, layout, world, align) for each in (codec, _INSIDE[world.inside])
        )
        self._scratch = Scratch(world.device)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """One sum of uint8 payloads.

        `capacity_bytes` is the codec's payload of the whole unit, `inside_bytes` that of the codec
        within a host.
        """
        size, inside = (own.part(own.span).wire_bytes for own in (self._across, self._inside))
        return (Round(Verb.ALL_REDUCE, torch.uint8, size, inside_bytes=inside),)

    def run(self, gradients: Sequence[torch.Tensor], context: StepContext) -> Rounds:
        """Add the residuals, sum by one `AllReduce`, divide; see this module.

        Args:
            gradients: One 1-D contiguous float32 tensor per segment; they hold the mean afterwards.
            context: The step; residuals are unscaled, and a gradient that is all zero keeps its own
                back where the step holds zeros.

        Raises:
            PayloadError: What another rank gives is no payload of the codec.
        """
        if self._residuals:
            self._residuals.begin(gradients, context)
        across, inside = (
            EncodedSum(payloads, gradients, context, self._residuals)
            for payloads in (self._across, self._inside)
        )
        yield AllReduce(across, self._scratch, inside)
        if self._residuals:
            self._residuals.end(gradients)
        for x in gradients:
            self._world.divide(x)

    def rollback(self, context: StepContext) -> None:
        """Put back what this rank has put in, into the residuals; nothing without feedback."""
        if self._residuals:
            self._residuals.rollback()


def why_not(codec: Codec) -> str:
    """Return why a codec can not be used at every hop; nothing if it can.

    It must be a codec that any rank may cut anywhere between blocks, and the length of a message
    must be known to whoever hears it: not those that choose among the elements of a parameter, and
    none that Zstandard shortens.
    """
    if codec.granularity not in (Granularity.ELEMENT, Granularity.BLOCK):
        return "its statistics span a whole parameter, which no rank may cut"
    if not isinstance(codec.size, Fixed):
        return "the length of its payloads is not known beforehand"
    return ""
