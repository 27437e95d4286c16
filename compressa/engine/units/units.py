"""Units: what is compressed and sent as one, worked out once from static facts.

Parameters are walked from the last to the first, as backward readies them. Small ones that
share a compressor, a dtype and a fragment are put together until a unit is full; large ones are cut
where their compressor's granularity allows. A unit is full with `unit_bytes` of dense gradient,
unless so little is left of them after compression that a message would be mostly latency: then it
goes on to `payload_bytes`, or to `_MOST_UNITS` times the dense size. What is not compressed at
all has a size of its own: its sums cost less in large pieces, but for the first, which shall be on
the wire soon.

Where what is urgent overtakes, and no sizes are given, units are small at both ends: each holds a
part of what its compressor has left, and no more than half of what came before. What the forward
needs first, which backward readies last, keeps it waiting for a moment only. What backward readies
first is on the wire soon; and since it may be what the forward needs last, the step ends soon after
it has come. The others cost few messages. That goes for models of any size.

Nothing here depends on DDP's buckets, on arrival times or on a measured link, so neither does any
arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from compressa.compressor import Compressor, Granularity
from compressa.config import Config
from compressa.parameters import Layout, ParameterInfo, Segment

_UNIT_BYTES = 4 << 20
# As DDP's buckets: what it lays side by side is then summed where it is, as early as DDP would.
_FIRST_DENSE_BYTES, _DENSE_UNIT_BYTES = 1 << 20, 25 << 20
_UNIT_PAYLOAD_BYTES = 128 << 10
_MOST_UNITS = 8  # more would leave nothing to overlap
LARGEST_UNIT_BYTES = _MOST_UNITS * _UNIT_BYTES
_PART, _LEAST_PART = 16, 64  # a unit is at least one of so many of what is left, of all there is
_GROWTH = 2  # nor more than one of so many of what came before
_MOST_OF_REST = 0.75  # so that what forward needs first does not wait for others
_LEAST_PAYLOAD_BYTES = 64 << 10  # takes a fast link as long as a message takes the processor
# Takes kernels as long as a unit takes the interpreter, whose code is not in the cache.
_LEAST_DENSE_BYTES, _LARGEST_LEAST = 1 << 20, 8


class UnitSizes(NamedTuple):
    """How large units are, in bytes.

    Attributes:
        unit_bytes: Least dense bytes of a full unit; None: 1/16 of what its compressor has left
            but no more than half of what came before; at least 1/64 of all, 1 MiB or 1/8 of all of
            what is compressed, and 64 KiB after that; and no more than 3/4 of what is left.
        payload_bytes: Least bytes of it after compression; does not count where that is None.
        dense_bytes: Least bytes of a full unit that is not compressed; None likewise.
        first_dense_bytes: The same, of the first of them; None for `dense_bytes`.
    """

    unit_bytes: int | None = None
    payload_bytes: int = 1
    dense_bytes: int | None = None
    first_dense_bytes: int | None = None

    @classmethod
    def of(cls, config: Config, *, launched: bool = False) -> UnitSizes:
        """Return what is configured, or usual for the configured policy.

        Where what is urgent overtakes, sizes that are not configured stay None.

        Args:
            config: The configuration.
            launched: Whether a GPU does all that is asked of it, exchanges included: there a unit
                costs the host more than its bytes cost the GPU.
        """
        exchange = config.exchange
        unit_bytes, dense_bytes = exchange.unit_bytes, exchange.unit_dense_bytes
        first_bytes = None
        if not config.schedule.overtaking:
            unit_bytes = unit_bytes or (_DENSE_UNIT_BYTES if launched else _UNIT_BYTES)
            if dense_bytes is None:
                first_bytes, dense_bytes = _FIRST_DENSE_BYTES, _DENSE_UNIT_BYTES
        return cls(unit_bytes, exchange.unit_payload_bytes, dense_bytes, first_bytes)


@dataclass(frozen=True)
class Unit:
    """A layout and what compresses it, as in force at some step."""

    layout: Layout
    compressor: Compressor


@dataclass
class _Group:
    """Parameters of a fragment that share a compressor and a dtype, and the unit being filled."""

    compressor: Compressor
    dtype: torch.dtype
    left_bytes: int = 0  # dense, of what is in no full unit
    total_bytes: int = 0
    total_payload_bytes: int = 0
    segments: list[Segment] = field(default_factory=list)
    dense_bytes: int = 0
    payload_bytes: int = 0

    def count(self, parameter: ParameterInfo) -> None:
        """Take a parameter in, before any unit is filled."""
        self.left_bytes += parameter.elems * self.dtype.itemsize
        self.total_bytes = self.left_bytes
        self.total_payload_bytes += self.compressor.payload_bytes(parameter.shape)

    def given_bytes(self, sizes: UnitSizes) -> int | None:
        """Return how many dense bytes units shall have, if that is the same for all."""
        return sizes.unit_bytes if self.compresses else sizes.dense_bytes

    def least_bytes(self, sizes: UnitSizes) -> int:
        """Return how many dense bytes the unit that is being filled shall have."""
        given, taken_bytes = self.given_bytes(sizes), self.total_bytes - self.left_bytes
        first = sizes.first_dense_bytes
        if first is not None and not (self.compresses or taken_bytes):
            return first
        if given is not None:
            return given
        shrunk = self.total_bytes / max(self.total_payload_bytes, 1)
        least = min(self.left_bytes / _PART, taken_bytes / _GROWTH)
        least = max(least, self.total_bytes / _LEAST_PART, _LEAST_PAYLOAD_BYTES * shrunk)
        if self.compresses:
            least = max(least, min(_LEAST_DENSE_BYTES, self.total_bytes / _LARGEST_LEAST))
        return max(1, int(min(least, _MOST_OF_REST * self.left_bytes)))

    def add(self, segment: Segment) -> None:
        """Put a segment into the unit."""
        parameter = segment.parameter
        whole = segment.elems == parameter.elems
        self.segments.append(segment)
        self.dense_bytes += segment.elems * parameter.dtype.itemsize
        self.payload_bytes += self.compressor.payload_bytes(
            parameter.shape if whole else (segment.elems,)
        )

    def full(self, sizes: UnitSizes) -> bool:
        """Whether the unit has all that it shall have."""
        least_bytes = self.least_bytes(sizes)
        if self.dense_bytes < least_bytes:
            return False
        if not self.compresses or sizes.unit_bytes is None:
            return True
        grown = self.dense_bytes >= _MOST_UNITS * least_bytes
        return grown or self.payload_bytes >= sizes.payload_bytes

    def take(self) -> list[Segment]:
        """Return what the unit holds, and begin the next."""
        segments, self.segments = self.segments, []
        self.left_bytes -= self.dense_bytes
        self.dense_bytes = self.payload_bytes = 0
        return segments

    @cached_property
    def compresses(self) -> bool:
        """Whether it makes anything smaller."""
        elems = 1 << 20
        return self.compressor.payload_bytes((elems,)) < elems * self.dtype.itemsize


class _Kind(NamedTuple):
    """What the parameters of a unit have in common."""

    compressor: Compressor
    dtype: torch.dtype
    fragment: int


def _kind(parameter: ParameterInfo, compressors: Mapping[str, Compressor]) -> _Kind:
    return _Kind(compressors[parameter.name], parameter.dtype, parameter.fragment)


def usual_full(dense_bytes: int, payload_bytes: int) -> bool:
    """Return whether a unit has all that it would have where order is all the same.

    Args:
        dense_bytes: Of what is in it.
        payload_bytes: Of that, after compression.
    """
    if payload_bytes >= dense_bytes:
        return dense_bytes >= _DENSE_UNIT_BYTES
    grown = dense_bytes >= LARGEST_UNIT_BYTES
    return grown or (dense_bytes >= _UNIT_BYTES and payload_bytes >= _UNIT_PAYLOAD_BYTES)


def build_units(
    parameters: Sequence[ParameterInfo], compressors: Mapping[str, Compressor], sizes: UnitSizes
) -> list[Unit]:
    """Divide the parameters into units.

    Args:
        parameters: In the model's order.
        compressors: By parameter name, as in force at some step.
        sizes: How large they are.

    Returns:
        Units in the order in which backward readies them, numbered from 0.
    """
    groups: dict[_Kind, _Group] = {}
    for parameter in reversed(parameters):  # those that are not full go in the order of backward
        kind = _kind(parameter, compressors)
        groups.setdefault(kind, _Group(kind.compressor, kind.dtype)).count(parameter)
    ready: list[tuple[list[Segment], Compressor]] = []
    for parameter in reversed(parameters):
        group = groups[_kind(parameter, compressors)]
        cut_bytes = group.given_bytes(sizes) or group.least_bytes(sizes)
        for segment in _cut(parameter, group.compressor, cut_bytes):
            group.add(segment)
            if group.full(sizes):
                ready.append((group.take(), group.compressor))
    ready += [(group.take(), group.compressor) for group in groups.values() if group.segments]
    return [Unit(Layout(i, tuple(segments)), c) for i, (segments, c) in enumerate(ready)]


def _cut(parameter: ParameterInfo, compressor: Compressor, unit_bytes: int) -> list[Segment]:
    """Cut one parameter; pieces are equal to within a block."""
    size = parameter.elems * parameter.dtype.itemsize
    whole = compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX)
    pieces = size // unit_bytes
    if whole or pieces < 2:
        return [Segment(parameter, 0, parameter.elems)] if parameter.elems else []
    block = compressor.block_elems
    blocks = -(-parameter.elems // block)
    edges = [min(blocks * i // pieces * block, parameter.elems) for i in range(pieces + 1)]
    pairs = itertools.pairwise(edges)
    return [Segment(parameter, start, stop) for start, stop in pairs if start < stop]
