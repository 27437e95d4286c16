"""DenseValues: an accumulator whose messages are the values themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.region import Region

_EXACT_IN_BFLOAT16 = 256  # whole numbers up to here
_QUICK_BYTES = 1 << 19  # 0.1 ms; a hand-over to a busy thread and back takes more


class DenseValues(Accumulator):
    """A tensor that is summed in place, in its own dtype; integers wrap.

    A sum of two is the same on both sides; in what order more are added is the algorithm's.

    Args:
        values: 1-D, contiguous; or tensors, which whoever needs one vector has joined.
        maximum: Whether to take the largest instead of the sum: NaN where any rank has one.
        divisor: What to divide the values by before; each quotient is rounded once on every device.

    Attributes:
        lent: The values as they are: one vector, or tensors that nothing has joined yet.
    """

    align_elems = 16  # so that vectors are not cut
    ready = True

    def __init__(
        self, values: torch.Tensor | Region, *, maximum: bool = False, divisor: int = 1
    ) -> None:
        self.lent = values
        self.span = Span(0, values.elems if isinstance(values, Region) else values.numel())
        self.divisor = divisor
        self._item_bytes = values.dtype.itemsize
        self._maximum = maximum
        self._take_in = _enlarge if maximum else torch.Tensor.add_

    @property
    def dense(self) -> torch.Tensor | None:
        """The values, which are joined if need be; None if the largest are taken."""
        return None if self._maximum else self._values

    @property
    def _values(self) -> torch.Tensor:
        if isinstance(self.lent, Region):
            self.lent = self.lent.join()
        return self.lent

    def divide(self) -> None:
        """Divide in place; see `divide`."""
        divide(self._values, self.divisor)

    def capacity_bytes(self, span: Span) -> int:
        """Return the bytes that the elements take, which every message of them has."""
        return span.elems * self._item_bytes

    def quick(self, elems: int) -> bool:
        """Unless there are many."""
        return elems * self._item_bytes <= _QUICK_BYTES

    def give(self, span: Span) -> torch.Tensor:
        """Return the values where they are, as uint8: no copy, so later changes are seen in it."""
        return self._at(span).view(torch.uint8)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Return the values as `give` does; nothing is lost, whoever the author is."""
        return self.give(span)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Combine them in, without a copy of the values; see `Accumulator.add`.

        Args:
            span: Which elements.
            after: Messages of `give`: uint8, of the elements' bytes.
            before: Likewise; the first one is overwritten.
        """
        own, dtype = self._at(span), self._values.dtype
        if before:
            total = before[0].view(dtype)
            for message in before[1:]:
                self._take_in(total, message.view(dtype))
            self._take_in(own, total)
        for message in after:
            self._take_in(own, message.view(dtype))

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Copy messages of `share` over the values of their spans."""
        for span, message in shared:
            self._at(span).copy_(message.view(self._values.dtype))

    def landing(self, span: Span) -> torch.Tensor:
        """Return the values' own memory, uint8, where what is shared arrives in place."""
        return self.give(span)

    def _at(self, span: Span) -> torch.Tensor:
        return self._values[span.start : span.stop]


def divide(values: torch.Tensor, divisor: int, out: torch.Tensor | None = None) -> None:
    """Divide values by a whole number, each quotient rounded once on every device.

    On a GPU torch multiplies by the inverse of a bare number, which rounds twice.

    Args:
        values: Floating-point.
        divisor: By what.
        out: Receives the quotients; the values themselves if not given.
    """
    exact = divisor <= _EXACT_IN_BFLOAT16 or values.dtype.itemsize > 2
    by = _tensor_of(divisor, values.device) if exact else divisor
    torch.div(values, by, out=values if out is None else out)


@lru_cache(maxsize=64)
def _tensor_of(number: int, device: torch.device) -> torch.Tensor:
    return torch.tensor(float(number), device=device)


def _enlarge(values: torch.Tensor, others: torch.Tensor) -> None:
    """Make values the larger of two, element by element."""
    torch.maximum(values, others, out=values)
