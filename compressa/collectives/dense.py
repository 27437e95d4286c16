"""DenseValues: an accumulator whose messages are the values themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compressa.collectives.accumulator import Accumulator, Author, Span

_ALIGN_ELEMS = 16
_QUICK_BYTES = 1 << 19  # 0.1 ms; a hand-over to a busy thread and back takes more


class DenseValues(Accumulator):
    """A tensor that is summed in place, in its own dtype.

    A sum of two is the same on both sides; in what order more are added is the algorithm's.

    Args:
        values: 1-D, contiguous.
        take_in: Combines another tensor into one, in place, either way round with the same bits:
            the sum unless given.
    """

    def __init__(
        self,
        values: torch.Tensor,
        take_in: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.add_,
    ) -> None:
        self._values = values
        self._take_in = take_in

    @property
    def align_elems(self) -> int:
        """So that vectors are not cut."""
        return _ALIGN_ELEMS

    @property
    def exact(self) -> bool:
        """Always."""
        return True

    @property
    def in_place(self) -> bool:
        """Always."""
        return True

    def capacity_bytes(self, span: Span) -> int:
        """What the elements take."""
        return span.elems * self._values.itemsize

    def quick(self, elems: int) -> bool:
        """Unless there are many."""
        return elems * self._values.itemsize <= _QUICK_BYTES

    def give(self, span: Span) -> torch.Tensor:
        """The values, where they are."""
        return self._at(span).view(torch.uint8)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """The same."""
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Combine them in, without a copy of the values."""
        own, dtype = self._at(span), self._values.dtype
        if before:
            total = before[0].view(dtype)
            for message in before[1:]:
                self._take_in(total, message.view(dtype))
            self._take_in(own, total)
        for message in after:
            self._take_in(own, message.view(dtype))

    def take(self, span: Span, message: torch.Tensor) -> None:
        """Copy it."""
        self._at(span).copy_(message.view(self._values.dtype))

    def landing(self, span: Span) -> torch.Tensor:
        """The values' own memory."""
        return self.give(span)

    def _at(self, span: Span) -> torch.Tensor:
        return self._values[span.start : span.stop]
