"""Flushed: takes over from a compressor that kept residuals, and lets nothing of them be lost.

Residuals are keyed by parameter, so a compressor that keeps them itself simply goes on with them.
One that does not would leave them for ever: there they are added to the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compressa.aggregators.base import Aggregator, World
from compressa.aggregators.flush import Flush, stale_residuals
from compressa.codecs.base import Codec
from compressa.compressor import Compressor, Granularity
from compressa.parameters import Layout, ParameterInfo


@dataclass(frozen=True, kw_only=True)
class Flushed(Compressor):
    """`compressor`, and before its first payload what another one left and it does not keep.

    `handle.switch` puts it around what comes into force, and `Warmup` around what comes second.

    Args:
        compressor: In force from now on.
    """

    name: ClassVar[str] = "flushed"

    compressor: Compressor

    @property
    def codec(self) -> Codec | None:
        """What encodes, if it is a codec."""
        inner = self.compressor
        return inner if isinstance(inner, Codec) else getattr(inner, "codec", None)

    @property
    def granularity(self) -> Granularity:
        """The compressor's."""
        return self.compressor.granularity

    @property
    def block_elems(self) -> int:
        """The compressor's."""
        return self.compressor.block_elems

    @property
    def shared_stream(self) -> bool:
        """The compressor's."""
        return self.compressor.shared_stream

    @property
    def conserves_mass(self) -> bool:
        """The compressor's."""
        return self.compressor.conserves_mass

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """The compressor's."""
        return self.compressor.breakpoints

    def at(self, step: int) -> Compressor:
        """Go round the compressor in force."""
        return replace(self, compressor=self.compressor.at(step))

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Go round the parameter's."""
        return replace(self, compressor=self.compressor.for_parameter(parameter))

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The compressor's."""
        return self.compressor.payload_bytes(shape)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """The compressor's, after what is left of residuals that it does not keep."""
        for segment in layout.segments:
            world.state.claimed.discard(f"residual/{segment.parameter.name}")
        inner = self.compressor.aggregator(layout, world)
        stale = stale_residuals(layout, world.state)
        return Flush(inner, stale) if stale else inner
