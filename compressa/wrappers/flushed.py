"""Flushed: takes over from a compressor that kept residuals, and lets nothing of them be lost.

Residuals are keyed by parameter, so a compressor that keeps them itself simply goes on with them.
One that does not would leave them for ever: there they are added to the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.flush import Flush, stale_residuals
from compressa.aggregators.single import build_aggregator
from compressa.compressor import Compressor, Wrapper
from compressa.parameters import Layout


@dataclass(frozen=True, kw_only=True)
class Flushed(Wrapper, AggregatingCompressor):
    """`compressor`, and before its first payload what another one left and it does not keep.

    `handle.switch` puts it around what comes into force, and `Warmup` around what comes second.

    Args:
        compressor: In force from now on.
    """

    name: ClassVar[str] = "flushed"

    compressor: Compressor

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """The compressor's, after what is left of residuals that it does not keep."""
        for segment in layout.segments:
            world.state.claimed.discard(f"residual/{segment.parameter.name}")
        inner = build_aggregator(self.compressor, layout, world)
        stale = stale_residuals(layout, world.state)
        return Flush(inner, stale) if stale else inner
