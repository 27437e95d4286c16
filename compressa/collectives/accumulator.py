"""Accumulator: what a rank has of a sum so far, while the sum is on its way from rank to rank."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
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

    def cut(self, parts: int, align_elems: int) -> tuple[Span, ...]:
        """Cut into nearly equal parts, some of which may be empty.

        Args:
            parts: How many.
            align_elems: Cuts are whole multiples of it from the beginning.
        """
        return _cut(self, parts, align_elems)


@lru_cache(maxsize=4096)
def _cut(span: Span, parts: int, align_elems: int) -> tuple[Span, ...]:
    inner = (round(span.elems * i / parts / align_elems) * align_elems for i in range(1, parts))
    edges = [span.start, *(span.start + min(edge, span.elems) for edge in inner), span.stop]
    return tuple(Span(*pair) for pair in itertools.pairwise(edges))


class Author(NamedTuple):
    """In whose name a message is made: ranks that hold the same bits name the same one.

    Then their messages are the same, too, although random bits differ from rank to rank.

    Attributes:
        rank: One of those that hold the bits.
        hop: Tells its messages of the same elements from each other.
    """

    rank: int
    hop: int = 0


class Accumulator(ABC):
    """Values that partial sums of other ranks are added to, a span at a time.

    Messages are 1-D uint8 tensors, which stay as they are until the program has ended, or the
    next message of the same elements is made. Spans that are under way at the same time do not
    overlap.

    Attributes:
        span: All elements.
        align_elems: Spans may begin at multiples of it.
        exact: Whether messages always have `capacity_bytes` bytes.
        ready: Whether messages are there already, so that giving or sharing one takes no time.
        divisor: What they are divided by before they are summed, which whoever carries the sum has
            `divide` do, or does itself.
    """

    span: Span
    align_elems: int
    exact: bool = True
    ready: bool = False
    divisor: int = 1

    @property
    def dense(self) -> torch.Tensor | None:
        """The values, all of them, if a backend may sum them in place instead."""
        return None

    def divide(self) -> None:  # noqa: B027 - most have nothing to divide
        """Divide all values by `divisor`; once, before anything is given or shared."""

    @abstractmethod
    def capacity_bytes(self, span: Span) -> int:
        """Most bytes of a message."""

    @abstractmethod
    def quick(self, elems: int) -> bool:
        """Whether any of the calls below, for so many, is faster than handing it to a thread."""

    def cut(self, span: Span, parts: int) -> tuple[Span, ...]:
        """Cut a span into nearly equal parts, some of which may be empty.

        Args:
            span: It begins at a multiple of `align_elems`; so does each part that is not empty.
            parts: How many.
        """
        return span.cut(parts, self.align_elems)

    @abstractmethod
    def give(self, span: Span) -> torch.Tensor:
        """Return the values so far, for a rank that adds them to its own.

        In a sum a rank gives each element once at most: from then on it is another's to sum.
        """

    @abstractmethod
    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Return the values so far, for ranks that hold the same from then on.

        If the message is lossy, this rank goes on with what it decodes to, as they do.

        Args:
            span: Which values.
            author: In whose name the message is made.
        """

    @abstractmethod
    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Add what other ranks give: the sum of `before`, this rank's own values, `after`.

        It is taken from the first to the last, so that ranks that name the same order get the same
        bits. What `before` holds may be overwritten.

        Args:
            span: Which values.
            after: Messages that others gave of the span, in the order in which they are added.
            before: Likewise, of those whose values come before this rank's own.
        """

    def check(  # noqa: B027 - plain values are always in order
        self, span: Span, message: torch.Tensor, sender: int
    ) -> None:
        """Look at what another rank gives or shares, before it is added or held.

        Args:
            span: Of which values.
            message: 1-D uint8, as it came: at most `capacity_bytes(span)` long.
            sender: The rank that it came from.

        Raises:
            PayloadError: It can not be what the sender owes.
        """

    @abstractmethod
    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Hold what other ranks share: messages that were checked, each of a span."""

    def landing(self, span: Span) -> torch.Tensor | None:
        """Memory in which what is shared can arrive in place: `take` has nothing to do then."""
        return None
