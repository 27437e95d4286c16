"""EF21: every rank sends how its gradient differs from an estimate that all can follow.

    h_i = h_i + C(g_i - h_i);  out = 1/P sum_i h_i

Where error feedback sends a residual later, and steps may be far too long until it has, EF21 keeps
the estimate in force for what was not sent (Richtarik et al., NeurIPS 2021). With a gradient that
does not change, ||g - h_t||^2 <= (1 - delta)^t ||g - h_0||^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.ef21 import Estimated
from compressa.codecs.base import Codec, Contraction, Unbiased
from compressa.codecs.shrunk import contraction_of
from compressa.compressor import Wrapper
from compressa.errors import ConfigError
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class EF21(Wrapper, AggregatingCompressor):
    """A codec whose payloads change an estimate of the gradient, by all-gather.

    Each rank keeps 8 bytes per element: its own estimate, and the mean of all. No mass is
    conserved: what the estimate misses is not sent later, but is made up for. Each rank sends its
    payload P - 1 times: with int4 that is more than a dense ring's bytes from 16 ranks on
    (`compressa config check FILE --ranks P` says so).

    Args:
        codec: What compresses; a contraction, or unbiased: then it is scaled by 1 / (1 + omega).

    Raises:
        ConfigError: The codec is neither.
    """

    name: ClassVar[str] = "ef21"
    wraps: ClassVar[str] = "codec"

    codec: Codec

    def __post_init__(self) -> None:
        if not isinstance(self.codec.bias(1 << 20), Contraction | Unbiased):
            raise ConfigError(
                f"{self.codec.name}: this form is no contraction, its error may be longer than "
                'what it encodes, and EF21 would not converge; set feedback.kind = "none"'
            )

    @property
    def contraction(self) -> Codec:
        """The codec, scaled if it is unbiased."""
        return contraction_of(self.codec)

    @property
    def conserves_mass(self) -> bool:
        """There are estimates, and no residuals."""
        return False

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """An all-gather of changes.

        Raises:
            ConfigError: Another exchange is asked for.
        """
        if world.exchange not in ("auto", "all_gather"):
            raise ConfigError(
                f'ef21: every rank needs every change, so exchange.kind = "{world.exchange}" does '
                'not fit; use "auto" or "all_gather"'
            )
        return Estimated(self.contraction, layout, world)
