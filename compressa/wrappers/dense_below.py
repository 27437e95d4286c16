"""DenseBelow: parameters too small to be worth compressing travel dense.

Exempting the few small parameters costs hardly any bytes and removes most of the harm that
compression does to biases and norms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.single import build_aggregator
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor, Wrapper
from compressa.parameters import Layout, ParameterInfo


@dataclass(frozen=True, kw_only=True)
class DenseBelow(Wrapper, AggregatingCompressor):
    """`dense` for parameters of fewer than `elems` elements, `compressor` for the others.

    Args:
        compressor: For large parameters.
        elems: Parameters with fewer elements travel dense.
        dense: For small parameters.
    """

    name: ClassVar[str] = "dense_below"

    compressor: Compressor
    elems: int
    dense: Compressor = field(default_factory=NoCompression)

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Choose by the parameter's size."""
        if parameter.elems < self.elems:
            return self.compressor.exempt(parameter, self.dense).for_parameter(parameter)
        return self.compressor.for_parameter(parameter)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Build the compressor's: sizes were looked at when parameters were resolved."""
        return build_aggregator(self.compressor, layout, world)
