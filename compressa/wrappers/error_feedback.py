"""ErrorFeedback: what a lossy codec did not send this step is sent later.

    p = g + e;  send c = C(p);  e = p - decode(c)

so that sum_t decode(c_t) + e_T = sum_t g_t (Seide et al., 2014; Karimireddy et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compressa.aggregators.base import Aggregator, World
from compressa.aggregators.single import single
from compressa.codecs.base import Codec, Unbiased
from compressa.compressor import Compressor, Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Compressor):
    """A codec with residuals, in float32 and unscaled, one per parameter and rank.

    Args:
        codec: What compresses. It must be a contraction: the residual of an unbiased
            quantiser grows without bound.
        owner: In scatter-reduce, also keep the error of the owner's encode of the mean.

    Raises:
        ConfigError: The codec is unbiased.
    """

    name: ClassVar[str] = "error_feedback"

    codec: Codec
    owner: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.codec.bias(1 << 20), Unbiased):
            raise ConfigError(
                f"{self.codec.name}: this form is unbiased, and unscaled error feedback on an "
                'unbiased quantiser diverges; set feedback.kind = "none", or use the biased form'
            )

    @property
    def granularity(self) -> Granularity:
        """The codec's."""
        return self.codec.granularity

    @property
    def block_elems(self) -> int:
        """The codec's."""
        return self.codec.block_elems

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The codec's."""
        return self.codec.payload_bytes(shape)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """The codec's, with residuals."""
        return single(self.codec, layout, world, worker_feedback=True, owner_feedback=self.owner)
