"""DenseBelow: parameters too small to be worth compressing travel dense.

Exempting the few small parameters costs hardly any bytes and removes most of the harm that
compression does to biases and norms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from compressa.aggregators.base import Aggregator, World
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor, Granularity
from compressa.parameters import Layout, ParameterInfo


@dataclass(frozen=True, kw_only=True)
class DenseBelow(Compressor):
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

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Choose by the parameter's size."""
        if parameter.elems < self.elems:
            return self.compressor.exempt(parameter, self.dense).for_parameter(parameter)
        return self.compressor.for_parameter(parameter)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """The compressor's."""
        return self.compressor.payload_bytes(shape)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        """Build the compressor's: sizes were looked at when parameters were resolved."""
        return self.compressor.aggregator(layout, world)
