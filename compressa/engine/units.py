"""Units: what is compressed and sent as one, worked out once from static facts.

Parameters are walked from the last to the first, as backward readies them. Small ones that
share a compressor and a dtype are put together until a unit is full; large ones are cut where
their compressor's granularity allows. A unit is full with `unit_bytes` of dense gradient, unless
so little is left of them after compression that a message would be mostly latency: then it
goes on to `payload_bytes`, or to `_MOST_UNITS` times the dense size. What is not compressed at
all has a size of its own: its sums cost less in large pieces. Nothing here depends on DDP's
buckets, on arrival times or on a measured link, so neither does any arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from compressa.compressor import Compressor, Granularity
from compressa.parameters import Layout, ParameterInfo, Segment

_MOST_UNITS = 8  # more would leave nothing to overlap
_CUT_ABOVE = 1.5  # a parameter is cut only if it has at least this many units' bytes


@dataclass(frozen=True)
class Unit:
    """A layout and what compresses it."""

    layout: Layout
    compressor: Compressor


@dataclass
class _Open:
    """A unit that is being filled."""

    segments: list[Segment] = field(default_factory=list)
    dense_bytes: int = 0
    payload_bytes: int = 0

    def add(self, segment: Segment, compressor: Compressor) -> None:
        parameter = segment.parameter
        whole = segment.elems == parameter.elems
        self.segments.append(segment)
        self.dense_bytes += segment.elems * parameter.dtype.itemsize
        self.payload_bytes += compressor.payload_bytes(
            parameter.shape if whole else (segment.elems,)
        )

    def full(self, unit_bytes: int, payload_bytes: int) -> bool:
        if self.dense_bytes < unit_bytes:
            return False
        return self.payload_bytes >= payload_bytes or self.dense_bytes >= _MOST_UNITS * unit_bytes


def build_units(
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    unit_bytes: int,
    payload_bytes: int,
    dense_bytes: int,
) -> list[Unit]:
    """Divide the parameters into units.

    Args:
        parameters: In the model's order.
        compressors: By parameter name, as in force at some step.
        unit_bytes: Least dense bytes of a full unit.
        payload_bytes: Least bytes of a full unit after compression.
        dense_bytes: Least bytes of a full unit that is not compressed.

    Returns:
        Units in the order in which backward readies them, numbered from 0.
    """
    ready: list[tuple[list[Segment], Compressor]] = []
    filling: dict[tuple[Compressor, torch.dtype], _Open] = {}
    for parameter in reversed(parameters):
        compressor = compressors[parameter.name]
        dense = not _compresses(compressor, parameter.dtype)
        least_bytes = dense_bytes if dense else unit_bytes
        for segment in _cut(parameter, compressor, least_bytes):
            key = (compressor, parameter.dtype)
            unit = filling.setdefault(key, _Open())
            unit.add(segment, compressor)
            if unit.full(least_bytes, 0 if dense else payload_bytes):
                ready.append((unit.segments, compressor))
                del filling[key]
    ready += [(unit.segments, key[0]) for key, unit in filling.items()]
    return [Unit(Layout(i, tuple(segments)), c) for i, (segments, c) in enumerate(ready)]


def _compresses(compressor: Compressor, dtype: torch.dtype) -> bool:
    elems = 1 << 20
    return compressor.payload_bytes((elems,)) < elems * dtype.itemsize


def _cut(parameter: ParameterInfo, compressor: Compressor, unit_bytes: int) -> list[Segment]:
    """Cut one parameter; pieces are equal to within a block."""
    size = parameter.elems * parameter.dtype.itemsize
    whole = compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX)
    if whole or size < _CUT_ABOVE * unit_bytes:
        return [Segment(parameter, 0, parameter.elems)] if parameter.elems else []
    pieces = round(size / unit_bytes)
    block = compressor.block_elems
    blocks = -(-parameter.elems // block)
    edges = [min(blocks * i // pieces * block, parameter.elems) for i in range(pieces + 1)]
    pairs = itertools.pairwise(edges)
    return [Segment(parameter, start, stop) for start, stop in pairs if start < stop]
