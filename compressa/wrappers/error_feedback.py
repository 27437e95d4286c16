"""ErrorFeedback: what a lossy codec did not send this step is sent later.

    p = g + e;  send c = C(p);  e = p - decode(c)

so that sum_t decode(c_t) + e_T = sum_t g_t (Seide et al., 2014; Karimireddy et al., 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.single import single
from compressa.codecs.base import Biased, Codec, Unbiased
from compressa.codecs.shrunk import contraction_of
from compressa.compressor import Granularity, Wrapper
from compressa.errors import ConfigError
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Wrapper, AggregatingCompressor):
    """A codec with residuals, unscaled, one per parameter and rank.

    Args:
        codec: What compresses. It must be a contraction, or with `scaled` unbiased: the residual
            of any other quantiser grows without bound.
        rule: How residuals are kept: their dtype, decay and resets, and whether the owner of a
            shard keeps the error of the mean. By default in float32, and all that is lost.
        scaled: Multiply what an unbiased codec decodes to by 1 / (1 + omega), which makes it a
            contraction.

    Raises:
        ConfigError: The codec is no contraction, and can not be made one.
    """

    name: ClassVar[str] = "error_feedback"
    wraps: ClassVar[str] = "codec"

    codec: Codec
    rule: FeedbackRule = field(default_factory=FeedbackRule)
    scaled: bool = False

    def __post_init__(self) -> None:
        bias = self.codec.bias(1 << 20)
        if isinstance(bias, Unbiased) and not self.scaled:
            raise ConfigError(
                f"{self.codec.name}: this form is unbiased, and unscaled error feedback on an "
                'unbiased quantiser diverges; set feedback.kind = "none" or "scaled", or use the '
                "biased form"
            )
        if isinstance(bias, Biased):
            raise ConfigError(
                f"{self.codec.name}: this form is no contraction, its error may be longer than the "
                'gradient, and error feedback would add that up; set feedback.kind = "none"'
            )

    @property
    def contraction(self) -> Codec:
        """The codec, scaled if it is unbiased."""
        return contraction_of(self.codec)

    @property
    def granularity(self) -> Granularity:
        """The codec's, unless residuals are kept in blocks."""
        own = self.codec.granularity
        blocks = self.rule.block_elems > 1 and own is Granularity.ELEMENT
        return Granularity.BLOCK if blocks else own

    @property
    def block_elems(self) -> int:
        """The least that both the codec and the residuals can be cut at."""
        if self.granularity is not Granularity.BLOCK:
            return self.codec.block_elems
        return math.lcm(self.codec.block_elems, self.rule.block_elems)

    @property
    def conserves_mass(self) -> bool:
        """Not where residuals lose something themselves, or the owner keeps none."""
        return self.rule.conserves_mass

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """The codec's, with residuals."""
        return single(self.contraction, layout, world, feedback=self.rule)
