"""EncodedSum: an accumulator of a unit's gradients whose messages a codec makes.

What comes in is decoded and added in float32, and each message is encoded anew. So an algorithm
adds, to each element, the errors of the hops in which values are summed, and that of the result's
own message: with a codec that errs by at most e |x|, at most e sum_i |v_i| in each of them (but for
what the errors before have added).

Random bits differ by rank for what is given away, and by author and hop for what is shared, so that
errors average out, and ranks that hold the same bits still make the same message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.hop_residuals import HopResiduals
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import scratch_tensor
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec, Draw, Fixed
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.errors import PayloadError
from compressa.parameters import Layout

_QUICK_ELEMS = 1 << 14
_HOP_SHIFT = 16  # a Draw's rank has 23 bits


class SpanPayloads:
    """What encodes and decodes the messages of a unit, by span; made once, as spans come again.

    A message is a payload with a header and a scope for each segment that it touches. Spans count
    elements as if each segment began at a multiple of `align_elems`, so that blocks are the same
    however a unit is cut.

    Args:
        codec: Its size is Fixed.
        layout: The unit.
        world: Rank, seed and device.
        align_elems: A multiple of the codec's block.

    Attributes:
        codec: As given.
        layout: As given.
        rank: This rank.
        align_elems: As given.
        span: All elements.
        lossless: Whether there is nothing to keep of what is encoded.

    Raises:
        ValueError: The codec's payloads have no fixed size.
    """

    def __init__(self, codec: Codec, layout: Layout, world: World, align_elems: int) -> None:
        if not isinstance(codec.size, Fixed):
            raise ValueError(f"{codec.name}: the length of its payloads is not known beforehand")
        self.codec = codec
        self.layout = layout
        self.rank = world.rank
        self.align_elems = align_elems
        self.lossless = codec.bias(layout.elems) == LOSSLESS
        self._world = world
        padded = [-(-s.elems // align_elems) * align_elems for s in layout.segments]
        *self._starts, end = accumulate(padded, initial=0)
        self.span = Span(0, end)
        self._parts: dict[Span, ScopePayload] = {}
        self._buffers: dict[Span, torch.Tensor] = {}

    def buffer(self, span: Span) -> torch.Tensor:
        """Return where a span's messages are made: uint8, one message long; padding stays zero."""
        if span not in self._buffers:
            self._buffers[span] = self.part(span).buffer()
        return self._buffers[span]

    def part(self, span: Span) -> ScopePayload:
        """Return what encodes and decodes the messages of a span, in all segments that it meets."""
        if span not in self._parts:
            scopes = [
                Scope(i, low, segment.part(low, high))
                for i, segment in enumerate(self.layout.segments)
                for low, high in [self._within(i, span)]
                if low < high
            ]
            unit = self.layout.unit
            self._parts[span] = ScopePayload(self.codec, unit, scopes, self._world, feedback=None)
        return self._parts[span]

    def _within(self, i: int, span: Span) -> tuple[int, int]:
        """The elements of a segment that are in a span."""
        start, elems = self._starts[i], self.layout.segments[i].elems
        return max(span.start - start, 0), min(span.stop - start, elems)


class EncodedSum(Accumulator):
    """One step's sum of a unit's gradients where they are, which travel as a codec's payloads.

    Args:
        payloads: Make the messages.
        values: The unit's gradients, float32; they hold the sum when it is done.
        context: The step.
        residuals: Keep what messages lose; None if nobody does.
    """

    def __init__(
        self,
        payloads: SpanPayloads,
        values: Sequence[torch.Tensor],
        context: StepContext,
        residuals: HopResiduals | None,
    ) -> None:
        self.span = payloads.span
        self.align_elems = payloads.align_elems
        self._payloads = payloads
        self._values = values
        self._context = context
        self._codec = payloads.codec
        self._residuals = None if payloads.lossless else residuals

    def capacity_bytes(self, span: Span) -> int:
        """A header, and what the codec takes for each scope."""
        return self._payloads.part(span).wire_bytes

    def quick(self, elems: int) -> bool:
        """Unless there are many."""
        return elems <= _QUICK_ELEMS

    def give(self, span: Span) -> torch.Tensor:
        """Encode, with this rank's own random bits; what that loses is this rank's to keep."""
        return self._encode(span, keeps=True, rank=self._payloads.rank)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Encode, with the author's random bits, and decode; the author keeps what that loses."""
        keeps = author.rank == self._payloads.rank
        rank = author.rank | author.hop << _HOP_SHIFT
        message = self._encode(span, keeps=keeps, rank=rank, shared=True)
        self.take([(span, message)])
        return message

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless it is what `sender` owes in this step."""
        try:
            self._payloads.part(span).check(message, self._context, sender)
        except PayloadError as error:
            layout, step = self._payloads.layout, self._context.step
            where = f"unit {layout.unit} ({layout.name}) in step {step}"
            raise PayloadError(f"{where}, from rank {sender}: {error}") from error

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Decode and add."""
        part = self._payloads.part(span)
        if before:
            self._add_before(part, [part.parts(message) for message in before])
        for message in after:
            part.decode_add(message, self._values, 1.0, self._context, self._payloads.rank)

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Decode."""
        rank = self._payloads.rank
        for span, message in shared:
            self._payloads.part(span).decode(message, self._values, self._context, rank)

    def _add_before(
        self, part: ScopePayload, messages: Sequence[Sequence[tuple[Scope, torch.Tensor]]]
    ) -> None:
        """Add what comes before this rank's own values: it is summed by itself first."""
        for i, scope in enumerate(part.scopes):
            own, draw = scope.of(self._values), part.draw(scope, self._context)
            total = scratch_tensor("encoded sum", own.numel(), torch.float32, own.device)
            self._codec.decode(messages[0][i][1], total, draw)
            for scopes in messages[1:]:
                self._codec.decode_add(scopes[i][1], total, 1.0, draw)
            own.add_(total)

    def _encode(self, span: Span, *, keeps: bool, rank: int, shared: bool = False) -> torch.Tensor:
        part, context = self._payloads.part(span), self._context
        payload = self._payloads.buffer(span)
        if self._residuals is None:
            return part.encode(self._values, context, payload, owner=shared, rank=rank)
        keeps = keeps and (self._residuals.rule.owner or not shared)
        offset = HEADER_BYTES
        for scope in part.scopes:
            draw = part.draw(scope, context, owner=shared, rank=rank)
            room = part.room(payload, offset, scope)
            offset = part.advance(payload, offset, self._encode_scope(scope, room, draw, keeps))
        return part.seal(payload, context, offset - HEADER_BYTES)

    def _encode_scope(self, scope: Scope, room: torch.Tensor, draw: Draw, keeps: bool) -> int:
        """Encode a scope in one pass with what that loses; all who share go the same way."""
        assert self._residuals is not None
        x = scope.of(self._values)
        lost = scratch_tensor("encoded sum", x.numel(), torch.float32, x.device).zero_()
        length = self._codec.encode_feedback(x, lost, room, draw, self._context.loss_scale)
        if keeps:
            self._residuals.keep(scope, lost)
        return length
