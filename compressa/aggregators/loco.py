"""loco: four bits each way, and a residual of eight bits that averages the error.

    p = g + e;  send c = int4(p);  e = (1 - beta) e + beta (p - decode(c)), kept as int8

by scatter-reduce, and e = 0 in every `reset_steps`-th step (Xie et al., 2024, "LoCo: Low-Bit
Communication Adaptor for Large-scale Model Training"; the exchange as in ZeRO++'s qgZ, Wang et
al., 2023). Errors of the last steps are averaged, so that the residual stays small enough for
eight bits; the resets drop what has become stale.

The defaults are those of the authors' own integration into DeepSpeed (its pull request 6730), which
keeps 0.8 of the residual, so that beta = 0.2, and resets it every 1024 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, MultipleOf

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.single import single
from compressa.codecs.int4 import Int4
from compressa.compressor import Granularity
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class LoCo(AggregatingCompressor):
    """Four bits and a scale per block, with a residual of eight bits in a moving average.

    Each rank sends its shards as int4, their owner adds them in float32, and shares the mean as
    int4: two quantisations, whatever the number of ranks. The owner keeps the error of the mean in
    its own residual too.

    Wire format: that of int4, with its wire id.

    State: a residual of 1 byte per element, and 4 bytes per 256.

    Bias: that of int4; what was not delivered in time is averaged, rounded and at last dropped, so
    mass is conserved only about.

    Args:
        block: Elements that share a scale on the wire.
        beta: Share of the new error in the residual.
        reset_steps: The residual is dropped in every so manieth step; 0 for never.

    Raises:
        ConfigError: A number is out of its range.

    Example:
        >>> LoCo().payload_bytes((1000, 1000))
        531252
    """

    name: ClassVar[str] = "loco"

    block: Annotated[int, Ge(8), Le(65536), MultipleOf(2)] = 128
    beta: Annotated[float, Gt(0), Le(1)] = 0.2
    reset_steps: Annotated[int, Ge(0), Le(1 << 53)] = 1024

    def __post_init__(self) -> None:
        self._codec, self._rule  # noqa: B018 - they check themselves

    @property
    def granularity(self) -> Granularity:
        """Blocks, on the wire and in the residual."""
        return Granularity.BLOCK

    @property
    def block_elems(self) -> int:
        """The least that blocks of both kinds divide."""
        return math.lcm(self.block, self._rule.block_elems)

    @property
    def conserves_mass(self) -> bool:
        """Residuals are rounded, averaged and dropped."""
        return False

    @property
    def built_in_feedback(self) -> bool:
        """Its rule is part of it."""
        return True

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """As int4."""
        return self._codec.payload_bytes(shape)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Scatter-reduce of int4 with this residual, whatever the exchange of codecs."""
        world = replace(world, exchange="scatter_reduce")
        return single(self._codec, layout, world, feedback=self._rule)

    @property
    def _codec(self) -> Int4:
        return Int4(block=self.block)

    @property
    def _rule(self) -> FeedbackRule:
        return FeedbackRule(dtype="int8", beta=self.beta, reset_steps=self.reset_steps)
