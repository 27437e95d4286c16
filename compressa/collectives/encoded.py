"""EncodedValues: an accumulator whose messages a codec makes: decode, add, encode at every hop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from compressa.arrays import scratch_tensor
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.scratch import Scratch

if TYPE_CHECKING:
    from compressa.codecs.base import Codec, Draw

_QUICK_ELEMS = 1 << 14
_ALIGN_BYTES = 8  # codecs look at their bytes as wider words, also behind another message's
_HOP_SHIFT = 16  # a Draw's rank has 23 bits


class EncodedValues(Accumulator):
    """A float32 vector that is summed in place, and travels as a codec's payloads.

    What comes in is decoded and added in float32; each message is a scope of its own, encoded
    anew. So an algorithm adds, to each element, the errors of the hops in which values are summed,
    and that of the result's own message: with a codec that errs by at most e |x|, at most
    e sum_i |v_i| in each of them (but for what the errors before have added).

    Random bits differ by rank for what is given away, and by author and hop for what is shared, so
    that errors average out, and ranks that hold the same bits still make the same message.

    Args:
        codec: Its size is Fixed.
        values: 1-D, contiguous, float32.
        draw: Of the first element and this rank, in the first step; see `begin`.

    Raises:
        ValueError: The codec's payloads have no fixed size.

    Example:
        >>> from compressa.codecs import Int8
        >>> from compressa.codecs.base import Draw
        >>> values = EncodedValues(Int8(), torch.tensor([127.0, 3.2]), Draw(0, 0, 0, 0, rank=0))
        >>> message = values.share(Span(0, 2), Author(0))
        >>> values.take(Span(0, 2), message)
        >>> len(message), values.values.tolist()
        (8, [127.0, 3.0])
    """

    def __init__(self, codec: Codec, values: torch.Tensor, draw: Draw) -> None:
        from compressa.codecs.base import Fixed

        if not isinstance(codec.size, Fixed):
            raise ValueError(f"{codec.name}: the length of its payloads is not known beforehand")
        self.values = values
        self._codec = codec
        self._draw = draw
        self._scratch = Scratch(values.device)

    def begin(self, draw: Draw) -> None:
        """Begin another sum; `draw` says where in the run it happens."""
        self._draw = draw

    @property
    def align_elems(self) -> int:
        """The codec's block."""
        return self._codec.block_elems

    @property
    def exact(self) -> bool:
        """Always."""
        return True

    def capacity_bytes(self, span: Span) -> int:
        """What the codec takes, and zeros up to a multiple of 8."""
        return -(-self._codec.wire_bytes(span.elems) // _ALIGN_BYTES) * _ALIGN_BYTES

    def quick(self, elems: int) -> bool:
        """Unless there are many."""
        return elems <= _QUICK_ELEMS

    def give(self, span: Span) -> torch.Tensor:
        """Encode, with this rank's own random bits."""
        return self._encode(span, self._at_start(span))

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Encode, with the author's random bits, and decode to the values."""
        draw = self._at_start(span)
        rank = author.rank | author.hop << _HOP_SHIFT
        message = self._encode(span, replace(draw, rank=rank, owner=True))
        self.take(span, message)
        return message

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Decode and add."""
        own, draw = self._of(span), self._at_start(span)
        if before:
            total = scratch_tensor("encoded.before", span.elems, torch.float32, own.device)
            self._codec.decode(self._body(span, before[0]), total, draw)
            for message in before[1:]:
                self._codec.decode_add(self._body(span, message), total, 1.0, draw)
            own.add_(total)
        for message in after:
            self._codec.decode_add(self._body(span, message), own, 1.0, draw)

    def take(self, span: Span, message: torch.Tensor) -> None:
        """Decode."""
        self._codec.decode(self._body(span, message), self._of(span), self._at_start(span))

    def _encode(self, span: Span, draw: Draw) -> torch.Tensor:
        payload = self._scratch.room(span, self.capacity_bytes(span))
        length = self._codec.encode(self._of(span), payload[: self._bytes(span)], draw)
        payload[length:].zero_()
        return payload

    def _at_start(self, span: Span) -> Draw:
        """The counter of a span's random bits; to decode, no codec asks whose they were."""
        return replace(self._draw, start=self._draw.start + span.start)

    def _of(self, span: Span) -> torch.Tensor:
        return self.values[span.start : span.stop]

    def _bytes(self, span: Span) -> int:
        return self._codec.wire_bytes(span.elems)

    def _body(self, span: Span, message: torch.Tensor) -> torch.Tensor:
        return message[: self._bytes(span)]
