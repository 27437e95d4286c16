"""Sliced parameters: where each lies in the slices that ranks bring each other, and who owns what.

FSDP2 cuts every parameter along its first dimension among P ranks: with c = ceil(d0 / P), rank j
owns the rows from j c on, at most c of them. A group's reduce-scatter takes P slices side by side,
each with a part for every parameter, padded to c rows; its all-gather brings the same slices. So
the flattened parameter's elements from j n to (j + 1) n, with n = c * d1 * ..., are rank j's.

FSDP1 lays the flattened parameters of a unit one after another, and cuts the whole into P slices
of c = ceil(elements / P): rank j owns the elements from j c to (j + 1) c of it, wherever parameters
begin and end.

Both layouts follow from shapes and P alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compressa.parameters import ParameterInfo, Segment


@dataclass(frozen=True)
class SlicedParameter(ABC):
    """A parameter, and where it lies in the slices of its group.

    Attributes:
        parameter: It, with its whole shape, and the dtype in which it is brought.
    """

    parameter: ParameterInfo

    @property
    @abstractmethod
    def elems(self) -> int:
        """How many elements a slice has of it at most, padding included."""

    @property
    @abstractmethod
    def least(self) -> int:
        """How many elements a slice has at least, of all parameters."""

    @abstractmethod
    def of(self, rank: int) -> Segment:
        """Return what a rank owns of it; some ranks may own nothing."""

    @abstractmethod
    def start(self, rank: int) -> int:
        """Return where that begins in the rank's slice."""

    @abstractmethod
    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what a rank owns of it."""

    def view(self, flat: torch.Tensor, rank: int, first: int = 0) -> torch.Tensor:
        """Return a rank's own elements of it, 1-D, as part of the memory that is given.

        Args:
            flat: 1-D, of any dtype.
            rank: Whose.
            first: Where in `flat` the rank's slice begins.
        """
        start = first + self.start(rank)
        return flat[start : start + self.of(rank).elems]


@dataclass(frozen=True)
class SlicedByRows(SlicedParameter):
    """A parameter of FSDP2.

    Attributes:
        offset: Its first element in each slice.
        rows: How many rows it has there, padding included.
    """

    offset: int
    rows: int

    @property
    def elems(self) -> int:
        """See `SlicedParameter`."""
        return self.rows * self._row

    @property
    def least(self) -> int:
        """See `SlicedParameter`."""
        return self.offset + self.elems

    def of(self, rank: int) -> Segment:
        """See `SlicedParameter`."""
        whole = self.parameter.elems
        start = min(rank * self.elems, whole)
        return Segment(self.parameter, start, min(start + self.elems, whole))

    def start(self, rank: int) -> int:
        """See `SlicedParameter`."""
        return self.offset

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """See `SlicedParameter`."""
        return (self.of(rank).elems // max(1, self._row), *self.parameter.shape[1:])

    @property
    def _row(self) -> int:
        return torch.Size(self.parameter.shape[1:]).numel()


@dataclass(frozen=True)
class SlicedFlat(SlicedParameter):
    """A parameter of FSDP1.

    Attributes:
        first: Its first element among those of its unit.
        slice_elems: How many of these a slice has, padding included.
    """

    first: int
    slice_elems: int

    @property
    def elems(self) -> int:
        """See `SlicedParameter`."""
        return min(self.slice_elems, self.parameter.elems)

    @property
    def least(self) -> int:
        """See `SlicedParameter`."""
        return self.slice_elems

    def of(self, rank: int) -> Segment:
        """See `SlicedParameter`."""
        whole, begin = self.parameter.elems, rank * self.slice_elems - self.first
        start, stop = (min(max(0, end), whole) for end in (begin, begin + self.slice_elems))
        return Segment(self.parameter, start, stop)

    def start(self, rank: int) -> int:
        """See `SlicedParameter`."""
        return max(0, self.first - rank * self.slice_elems)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """See `SlicedParameter`."""
        return (self.of(rank).elems,)


def lay_out(parameters: Sequence[ParameterInfo], ranks: int) -> tuple[SlicedParameter, ...]:
    """Return where parameters lie that FSDP2 brings together.

    Args:
        parameters: In the order in which they lie in each slice; each of one dimension at least.
        ranks: P, into how many slices they are cut.
    """
    sliced: list[SlicedParameter] = []
    offset = 0
    for parameter in parameters:
        one = SlicedByRows(parameter, offset, -(-parameter.shape[0] // ranks))
        sliced.append(one)
        offset += one.elems
    return tuple(sliced)


def slice_elems(sliced: Sequence[SlicedParameter]) -> int:
    """Return how many elements each rank's slice has, padding included."""
    return max((one.least for one in sliced), default=0)
