"""ScopePayload: several scopes of a unit as one payload with one header.

The body holds the scopes' payloads in order, each beginning on a multiple of 8 bytes. A scope
of a codec with Bounded size is preceded by 8 bytes: its length (u32) and 4 zero bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.multi_tensor import MultiTensor
from compressa.aggregators.scope_coding import decode, decode_sum, encode, residuals_of
from compressa.codecs.base import Bounded, Codec, Draw
from compressa.codecs.fused import Averager, Checker, Decoder
from compressa.codecs.payload import (
    HEADER_BYTES,
    LENGTH_BYTES,
    Header,
    aligned,
    check_countable,
    check_header,
    write_header,
)
from compressa.collectives.scratch import zeros_side_by_side
from compressa.errors import PayloadError
from compressa.kernels import cuda

_QUICK_ELEMS = 1 << 15  # a hand-over to a thread and back takes more than this of all ranks
_QUICK_SCOPES = 4


class ScopePayload:
    """Encodes and decodes a fixed list of scopes; offsets are worked out once.

    On a GPU all scopes go in one call where the codec can do that and nothing else is done to them.

    Args:
        codec: The codec of all scopes.
        unit: Number of the unit.
        scopes: What the payload holds.
        world: Rank, seed and state.
        feedback: How encoding adds and keeps residuals; None if it does not.

    Attributes:
        codec: As given.
        scopes: As given.
        elems: Elements of all scopes.
        body_bytes: Bytes that follow the header, at most.
        wire_bytes: Bytes of the whole payload, at most.
        exact: Whether a payload always has as many.
        starts: Byte at which each scope's bytes begin, or the most that this can be.
        residuals: By scope; None for each without feedback.
        takes_multi_tensor: Whether the codec takes several scopes in one call, if values allow it.
        waits: Whether to encode or decode on a GPU may wait for it: where lengths vary, and in
            whatever others' codecs do.
        quick: Whether to encode a payload, and to decode those of all ranks, takes less time than
            handing that to another thread.

    Raises:
        ConfigError: They are more elements or bytes than a header can count.
    """

    def __init__(
        self,
        codec: Codec,
        unit: int,
        scopes: Sequence[Scope],
        world: World,
        *,
        feedback: FeedbackRule | None,
    ) -> None:
        self.codec = codec
        self.scopes = tuple(scopes)
        self._unit = unit
        self._world = world
        self._bounded = isinstance(codec.size, Bounded)
        self.exact = not self._bounded
        self.waits = self._bounded or codec.fused.encoder is None
        self._sizes = [codec.wire_bytes(scope.segment.elems) for scope in scopes]
        lead = LENGTH_BYTES if self._bounded else 0
        self.body_bytes = sum(lead + aligned(size) for size in self._sizes)
        self.wire_bytes = HEADER_BYTES + self.body_bytes
        self.elems = sum(scope.segment.elems for scope in scopes)
        check_countable(codec.name, self.elems, self.body_bytes)
        self.residuals = residuals_of(scopes, feedback, world)
        self._feedback = feedback
        self._lengths_tell_all = self.exact and codec.check_content is None
        self._multi_tensor: MultiTensor | None = None
        self.takes_multi_tensor = codec.fused.encoder is not None
        if codec.fused.multi_tensor_only_on_gpus:
            self.takes_multi_tensor = world.device.type != "cpu"
        sizes = (lead + aligned(size) for size in self._sizes)
        *self.starts, end = accumulate(sizes, initial=HEADER_BYTES)
        if self.scopes and self.takes_multi_tensor:
            given = codec, self.scopes, self.starts, end, world.state, feedback
            self._multi_tensor = MultiTensor(*given)
        self._checker: Checker | None = None
        if self._multi_tensor and codec.fused.checker and world.device.type == "cpu":
            where = [(s.segment.elems, start) for s, start in zip(scopes, self.starts, strict=True)]
            self._checker = codec.fused.checker(where, end)
        few = len(self.scopes) <= _QUICK_SCOPES and self.elems * world.size <= _QUICK_ELEMS
        together = self.exact and self._multi_tensor is not None
        self.quick = few and together and world.device.type == "cpu"
        self._made: tuple[StepContext, Header] | None = None

    def buffer(self) -> torch.Tensor:
        """Allocate a buffer for one payload, zeroed so that padding is."""
        return torch.zeros(self.wire_bytes, dtype=torch.uint8, device=self._world.device)

    def buffers(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Allocate one for each rank's payload, side by side; return all memory, and each."""
        return zeros_side_by_side([self.wire_bytes] * self._world.size, self._world.device)

    def draw(
        self, scope: Scope, context: StepContext, *, owner: bool = False, rank: int = -1
    ) -> Draw:
        """Return the counter of the random bits for a scope.

        Args:
            scope: The scope.
            context: The step.
            owner: Whether it is the mean, which the owner of a shard encodes.
            rank: Whose random bits are drawn; this rank's own if not given.
        """
        segment = scope.segment
        sender = self._world.rank if rank < 0 else rank
        index = segment.parameter.index
        return Draw(self._world.seed, context.step, index, segment.start, sender, owner)

    def encode(
        self,
        gradients: Sequence[torch.Tensor],
        context: StepContext,
        payload: torch.Tensor,
        *,
        owner: bool = False,
        rank: int = -1,
    ) -> torch.Tensor:
        """Encode all scopes of `gradients`; return the filled front of `payload`.

        Args:
            gradients: The unit's gradients.
            context: The step.
            payload: Memory for the payload.
            owner: Whether they are the mean, which the owner of a shard encodes.
            rank: Whose random bits are drawn; this rank's own if not given.
        """
        multi_tensor = self._multi_tensor
        encoder = multi_tensor.encoder(gradients, context, payload) if multi_tensor else None
        if encoder:
            loss_scale = 1.0 if self._feedback is None else context.loss_scale
            draw = self.draw(self.scopes[0], context, owner=owner, rank=rank)
            return self.seal(payload, context, encoder.encode(draw, loss_scale) or self.body_bytes)
        offset = HEADER_BYTES
        for scope, residual in zip(self.scopes, self.residuals, strict=True):
            room = self.room(payload, offset, scope)
            x, draw = scope.of(gradients), self.draw(scope, context, owner=owner, rank=rank)
            length = encode(self.codec, x, residual, room, draw, context)
            offset = self.advance(payload, offset, length)
        return self.seal(payload, context, offset - HEADER_BYTES)

    def averager(
        self,
        gradients: Sequence[torch.Tensor],
        context: StepContext,
        payload: torch.Tensor,
        undo: Sequence[torch.Tensor | None],
    ) -> Averager | None:
        """Return what makes the means of all scopes in one call; see `MultiTensor.averager`."""
        multi_tensor = self._multi_tensor
        return multi_tensor.averager(gradients, context, payload, undo) if multi_tensor else None

    def room(self, payload: torch.Tensor, offset: int, scope: Scope) -> torch.Tensor:
        """Return the memory for a scope's bytes: uint8, `codec.wire_bytes` of its elements.

        Args:
            payload: uint8, the whole.
            offset: Where the scope's bytes begin, its length included if that varies.
            scope: The scope.
        """
        start = offset + (LENGTH_BYTES if self._bounded else 0)
        return payload[start : start + self.codec.wire_bytes(scope.segment.elems)]

    def advance(self, payload: torch.Tensor, offset: int, length: int) -> int:
        """Note a written scope's length where it varies; return the next scope's offset.

        Args:
            payload: uint8, the whole.
            offset: Where the scope's bytes begin, its length included.
            length: Bytes that were written to its `room`.
        """
        if self._bounded:
            payload[offset : offset + LENGTH_BYTES].view(torch.int64).fill_(length)
            offset += LENGTH_BYTES
        return offset + aligned(length)

    def seal(self, payload: torch.Tensor, context: StepContext, body_bytes: int) -> torch.Tensor:
        """Write the header of a payload whose body is written.

        Args:
            payload: uint8, the whole.
            context: The step.
            body_bytes: Length of the body.

        Returns:
            The filled front of `payload`, in its memory.
        """
        write_header(payload, self._header(context, body_bytes))
        return payload[: HEADER_BYTES + body_bytes]

    def check(self, payload: torch.Tensor, context: StepContext, sender: int) -> None:
        """Raise PayloadError unless the payload is what `sender` owes for `context`.

        Args:
            payload: uint8, as it came.
            context: The step.
            sender: Rank.
        """
        check_header(payload, self._header(context, self.body_bytes), sender, self.exact)
        if self._lengths_tell_all or (self._multi_tensor and cuda.answers_come_later()):
            return  # or decoding checks the rest
        if self._checker:
            self._checker(payload)
            return
        for scope, part in self.parts(payload):
            self.codec.check(part, scope.segment.elems)

    def decode_add(
        self,
        payload: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        weight: float,
        context: StepContext,
        sender: int,
    ) -> None:
        """Add `weight` times the decoded scopes to `gradients`.

        Args:
            payload: uint8, checked.
            gradients: The unit's, float32; updated in place.
            weight: Factor on what is decoded.
            context: The step.
            sender: The rank whose random bits were drawn.
        """
        decoder = self._decoder(gradients, [payload])
        if decoder:
            decoder.decode_add(payload, weight)
            return
        for scope, part in self.parts(payload):
            draw = self.draw(scope, context, rank=sender)
            self.codec.decode_add(part, scope.of(gradients), weight, draw)

    def average(
        self,
        payloads: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> None:
        """Write the mean of what all ranks sent, in float32, to `gradients`.

        Args:
            payloads: By rank, checked, this rank's own included.
            gradients: The unit's, float32 or of 16 bits, rounded to once.
            context: The step.
        """
        decoder = self._decoder(gradients, payloads)
        if decoder:
            decoder.decode_sum(payloads, 1.0 / len(payloads))
            return
        parts = [self.parts(payload) for payload in payloads]
        for i, scope in enumerate(self.scopes):
            sent = [(p[i][1], self.draw(scope, context, rank=r)) for r, p in enumerate(parts)]
            decode_sum(self.codec, sent, scope.of(gradients), 1.0 / len(payloads))

    def decode(
        self,
        payload: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        context: StepContext,
        sender: int,
    ) -> None:
        """Write the decoded scopes to `gradients`.

        Args:
            payload: uint8, checked; of a mean, if random bits were drawn for it.
            gradients: The unit's, float32 or of 16 bits, rounded to once.
            context: The step.
            sender: The rank that encoded it.
        """
        decoder = self._decoder(gradients, [payload])
        if decoder:
            decoder.decode(payload)
            return
        for scope, part in self.parts(payload):
            draw = self.draw(scope, context, owner=True, rank=sender)
            decode(self.codec, part, scope.of(gradients), draw)

    def give_back(self, payload: torch.Tensor, context: StepContext) -> None:
        """Add to the residuals what an encoded payload took from them.

        Args:
            payload: This rank's own, as `encode` returned it.
            context: The step in which it did.
        """
        for (scope, part), residual in zip(self.parts(payload), self.residuals, strict=True):
            if residual is not None:
                sent = torch.empty(scope.segment.elems, device=payload.device)
                self.codec.decode(part, sent, self.draw(scope, context))
                residual.give_back(sent, context)

    def _decoder(
        self, gradients: Sequence[torch.Tensor], payloads: Sequence[torch.Tensor]
    ) -> Decoder | None:
        """What decodes all scopes of payloads in one call; None if each has to go by itself."""
        decoder = self._multi_tensor.decoder(gradients) if self._multi_tensor else None
        if decoder and self.exact:
            for payload in payloads:
                if payload.numel() != self.wire_bytes:
                    raise _wrong_end(payload, self.wire_bytes)
        return decoder

    def _header(self, context: StepContext, body_bytes: int) -> Header:
        """What begins a payload of a step: this rank's and, of such a length, everybody's."""
        made = self._made
        if made is not None and made[0] is context and made[1].body_bytes == body_bytes:
            return made[1]
        head = (self.codec.wire_id, context.epoch, context.step, self._unit, self.elems)
        header = Header(*head, body_bytes)
        self._made = context, header
        return header

    def parts(self, payload: torch.Tensor) -> list[tuple[Scope, torch.Tensor]]:
        """Return each scope with its bytes.

        Raises:
            PayloadError: The lengths in the payload do not add up to its own.
        """
        offset = HEADER_BYTES
        parts = []
        for scope, size in zip(self.scopes, self._sizes, strict=True):
            length = size
            if self._bounded:
                length = self._scope_length(payload, offset, size)
                offset += LENGTH_BYTES
            parts.append((scope, payload[offset : offset + length]))
            offset += aligned(length)
        if payload.numel() != offset:
            raise _wrong_end(payload, offset)
        return parts

    def _scope_length(self, payload: torch.Tensor, offset: int, most: int) -> int:
        """Return the length that a payload says a scope has; waits for a GPU."""
        if offset + LENGTH_BYTES > payload.numel():
            raise PayloadError("a payload ends before its last scope begins")
        length = int(payload[offset : offset + 4].view(torch.int32).item()) & 0xFFFFFFFF
        if length > min(most, payload.numel() - offset - LENGTH_BYTES):
            raise PayloadError(f"a scope says it has {length} bytes, more than there are")
        return length


def _wrong_end(payload: torch.Tensor, end: int) -> PayloadError:
    return PayloadError(f"a payload's scopes end at byte {end} of {payload.numel()}")
