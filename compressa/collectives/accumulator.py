"""Accumulator: what a rank has of a sum so far, while the sum is on its way from rank to rank."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch


class Span(NamedTuple):
    """A range of elements.

    Attributes:
        start: The first.
        stop: One after the last.
    """

    start: int
    stop: int

    @property
    def elems(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def cut(self, parts: int, align_elems: int) -> list[Span]:
        """Cut into nearly equal parts, some of which may be empty.

        Args:
            parts: How many.
            align_elems: Cuts are whole multiples of it from the beginning.
        """
        inner = (round(self.elems * i / parts / align_elems) * align_elems for i in range(1, parts))
        edges = [self.start, *(self.start + min(edge, self.elems) for edge in inner), self.stop]
        return [Span(*pair) for pair in itertools.pairwise(edges)]


class Accumulator(ABC):
    """Values that partial sums of other ranks are added to, a span at a time.

    Messages are 1-D uint8 tensors. Spans that are under way at the same time do not overlap.
    """

    @property
    @abstractmethod
    def align_elems(self) -> int:
        """Spans may begin at multiples of it."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether messages always have `capacity_bytes` bytes."""

    @abstractmethod
    def capacity_bytes(self, span: Span) -> int:
        """Most bytes of a message."""

    @abstractmethod
    def quick(self, span: Span) -> bool:
        """Whether any of the calls below takes less time than handing it to another thread."""

    @abstractmethod
    def give(self, span: Span) -> torch.Tensor:
        """Return the values so far, for a rank that adds them to its own."""

    @abstractmethod
    def share(self, span: Span) -> torch.Tensor:
        """Return the values so far, for ranks that hold the same from then on.

        If the message is not exact, this rank goes on with what it decodes to, as they do.
        """

    @abstractmethod
    def add(self, span: Span, message: torch.Tensor) -> None:
        """Add what another rank gives."""

    @abstractmethod
    def take(self, span: Span, message: torch.Tensor) -> None:
        """Hold what another rank shares."""

    def landing(self, span: Span) -> torch.Tensor | None:
        """Memory in which what is shared can arrive in place: `take` has nothing to do then."""
        return None
