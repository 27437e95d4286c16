"""UnitRuntime: one unit's aggregator and the memory between it and the gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from compressa.aggregators.base import World
from compressa.arrays import HALVES, as_array
from compressa.compressor import Compressor
from compressa.engine.units import Unit
from compressa.kernels.feedback import all_finite
from compressa.parameters import Segment


class UnitRuntime:
    """Collects a unit's gradients, and delivers their mean in place.

    A gradient that is contiguous and of a dtype that the aggregator takes is worked on where it
    is; others pass through staging memory, allocated at the first step that needs it.

    Args:
        unit: The unit.
        world: What its aggregator needs.
    """

    def __init__(self, unit: Unit, world: World) -> None:
        self.layout = unit.layout
        self.label = _label(unit.compressor)
        self.aggregator = unit.compressor.aggregator(unit.layout, world)
        self.names = frozenset(s.parameter.name for s in unit.layout.segments)
        self._norms: list[torch.Tensor | float] = []
        self._staging: dict[Segment, torch.Tensor] = {}
        self._values: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []

    def collect(self, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return each segment's values as the aggregator wants them."""
        self._values, self._sources = [], []
        for segment in self.layout.segments:
            gradient = gradients[segment.parameter.name]
            source = gradient.contiguous().view(-1)[segment.start : segment.stop]
            self._sources.append(source)
            self._values.append(self._staged(segment, source))
        return self._values

    def deliver(self, gradients: Mapping[str, torch.Tensor], check_finite: bool) -> None:
        """Copy the mean back where it passed through staging memory."""
        for segment, value, source in zip(
            self.layout.segments, self._values, self._sources, strict=True
        ):
            if value is not source:
                source.copy_(value)
            original = gradients[segment.parameter.name]
            if not original.is_contiguous():
                self._unflatten(segment, source, original)
        self._norms = [_norm(source) for source in self._sources] if check_finite else []
        self._values, self._sources = [], []

    @property
    def finite(self) -> bool:
        """Whether all that was delivered last is finite, if that was to be checked.

        On a GPU it waits until that is known.
        """
        return all(math.isfinite(norm) for norm in self._norms)

    def _staged(self, segment: Segment, source: torch.Tensor) -> torch.Tensor:
        dtype = self.aggregator.values_dtype
        if source.dtype is dtype or (self.aggregator.takes_half and source.dtype in HALVES):
            return source
        if segment not in self._staging:
            self._staging[segment] = source.new_empty(segment.elems, dtype=dtype)
        return self._staging[segment].copy_(source)

    @staticmethod
    def _unflatten(segment: Segment, source: torch.Tensor, original: torch.Tensor) -> None:
        """Write a segment's values to a gradient whose memory is not in row-major order."""
        if segment.elems == original.numel():
            original.copy_(source.view(original.shape))
            return
        index = torch.arange(segment.start, segment.stop, device=source.device)
        original[torch.unravel_index(index, original.shape)] = source


def _norm(x: torch.Tensor) -> torch.Tensor | float:
    """A number that is finite if all values are."""
    if x.is_cuda:
        norm: torch.Tensor = torch.linalg.vector_norm(x, math.inf)
        return norm
    return 0.0 if all_finite(as_array(x)) else math.nan


def _label(compressor: Compressor) -> str:
    """Name the algorithm, not its wrapper."""
    for wrapped in ("codec", "compressor"):
        inner = getattr(compressor, wrapped, None)
        if isinstance(inner, Compressor):
            return _label(inner)
    return compressor.name
