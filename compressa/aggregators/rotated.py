"""THC on the wire: scopes in rotated coordinates, payloads of their codes, and a step's sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from compressa.aggregators.base import Scope, StepContext
from compressa.aggregators.shards import ShardSum
from compressa.arrays import as_array
from compressa.codecs.payload import HEADER_BYTES, Header, check_header, write_header
from compressa.collectives.accumulator import Span
from compressa.errors import PayloadError
from compressa.kernels import block_count
from compressa.kernels.hadamard import Codebook, rotate_back, rotate_quantize, sum_codes
from compressa.kernels.philox import Noise

WIRE_ID = 20
"""Of THC's payloads."""

Sums = npt.NDArray[Any]


class RotatedScope:
    """Part of one segment, a run of whole chunks but for the segment's last.

    Args:
        scope: The part.
        book: Chunks and codes.
        low: Its first coordinate in its shard.
        norms: Of all chunks of the segment; what is needed is seen through, as it changes.
        signs: Of all coordinates of the segment, likewise.

    Attributes:
        high: One past its last coordinate in its shard.
    """

    def __init__(
        self, scope: Scope, book: Codebook, low: int, norms: torch.Tensor, signs: torch.Tensor
    ) -> None:
        self.scope = scope
        self.low = low
        elems, start = scope.segment.elems, scope.start
        size, chunk = book.rotated_elems(elems), start // book.chunk
        self.high = low + size
        self._book = book
        self._norms = as_array(norms[chunk : chunk + block_count(elems, book.chunk)])
        self._signs = as_array(signs[start // 32 : (start + size) // 32])

    def encode(self, p: torch.Tensor, payload: torch.Tensor, noise: Noise) -> None:
        """Write the codes of `p` to where they are in a payload.

        Args:
            p: float32, 1-D, contiguous, as long as the scope.
            payload: uint8, the shard's, with its header, which is left alone.
            noise: The random numbers that it rounds by.
        """
        arrays = as_array(p), self._norms, self._signs, self._codes(payload)
        rotate_quantize(*arrays, book=self._book, noise=noise)

    def look_up(self, payload: torch.Tensor, sums: Sums, *, add: bool) -> None:
        """Look up the integers of a payload's codes.

        Args:
            payload: uint8, the shard's, with its header.
            sums: uint8 or uint16, the shard's; overwritten, or added to.
            add: Which of both.
        """
        own = sums[self.low : self.high]
        elems = self.scope.segment.elems
        sum_codes(self._codes(payload), elems, own, book=self._book, add=add)

    def decode(
        self, sums: Sums, out: torch.Tensor, count: int, weight: float, *, add: bool = False
    ) -> None:
        """Rotate the mean of integers back.

        Args:
            sums: uint8 or uint16, the shard's, of `count` ranks.
            out: float32, as long as the scope; receives `weight` times the mean.
            count: Number of ranks.
            weight: Factor on it.
            add: Whether to add it to `out` instead.
        """
        arrays = sums[self.low : self.high], self._norms, self._signs, as_array(out)
        rotate_back(*arrays, book=self._book, count=count, weight=weight, add=add)

    def _codes(self, payload: torch.Tensor) -> npt.NDArray[np.uint8]:
        first = HEADER_BYTES + self.low // 2
        codes: npt.NDArray[np.uint8] = as_array(payload)
        return codes[first : first + (self.high - self.low) // 2]


class RotatedPayloads:
    """The payloads of a unit's shards: of codes to the owner, of sums of integers from there.

    Args:
        unit: Number of the unit.
        shards: The parts of each.
        levels: The largest integer.
        size: Number of ranks.
        dtype: What integers are summed in: uint8 or uint16.

    Attributes:
        size: As given.
        shards: As given.
        coordinates: How many each shard has.
        sent_bytes: Of the codes of each shard.
        sealed_bytes: Of the sums of each shard: more.
    """

    def __init__(
        self,
        unit: int,
        shards: Sequence[Sequence[RotatedScope]],
        levels: int,
        size: int,
        dtype: torch.dtype,
    ) -> None:
        self.size = size
        self.shards = shards
        self.coordinates = [shard[-1].high if shard else 0 for shard in shards]
        self.sent_bytes = [HEADER_BYTES + n // 2 for n in self.coordinates]
        self.sealed_bytes = [HEADER_BYTES + n * dtype.itemsize for n in self.coordinates]
        self._dtype = np.dtype(np.uint8 if dtype is torch.uint8 else np.uint16)
        self._elems = [sum(part.scope.segment.elems for part in shard) for shard in shards]
        self._unit = unit
        self._most = size * levels

    def seal(self, shard: int, payload: torch.Tensor, context: StepContext) -> None:
        """Write the header of a shard's payload, whose body is written.

        Args:
            shard: Number of its owner.
            payload: uint8, as long as `sent_bytes` or `sealed_bytes` of the shard; header and body.
            context: The step.
        """
        write_header(payload, self._header(shard, payload.numel(), context))

    def check_codes(
        self, shard: int, payload: torch.Tensor, context: StepContext, sender: int
    ) -> None:
        """Refuse codes that are not what a rank owes the owner of a shard.

        Args:
            shard: Number of its owner.
            payload: uint8, as it came; its header and length are looked at, not its codes.
            context: The step.
            sender: The rank that it came from.

        Raises:
            PayloadError: The header is not that of the step, or the length is not `sent_bytes`.
        """
        header = self._header(shard, self.sent_bytes[shard], context)
        check_header(payload, header, sender, exact=True)

    def check_sums(self, shard: int, payload: torch.Tensor, context: StepContext) -> None:
        """Refuse sums that are not what the owner of a shard owes; waits for a GPU.

        Args:
            shard: Number of its owner.
            payload: uint8, as it came.
            context: The step.

        Raises:
            PayloadError: The header is not that of the step, the length is not `sealed_bytes`, or
                a sum is above `size` times the largest integer.
        """
        header = self._header(shard, self.sealed_bytes[shard], context)
        check_header(payload, header, shard, exact=True)
        if self._largest(payload) > self._most:
            raise PayloadError(
                f"thc: a sum from rank {shard} is above {self._most}, the most possible"
            )

    def sums(self, payload: torch.Tensor) -> Sums:
        """Return the body of a shard's payload of sums: uint8 or uint16, one for each coordinate.

        Args:
            payload: uint8, header and body; what is returned is its memory.
        """
        body: npt.NDArray[np.uint8] = as_array(payload)[HEADER_BYTES:]
        return body.view(self._dtype)

    def _largest(self, payload: torch.Tensor) -> int:
        """Return the largest of a payload's integers; waits for a GPU."""
        body = payload[HEADER_BYTES:]
        if not body.is_cuda:
            return int(self.sums(payload).max(initial=0))
        if not body.numel():
            return 0
        if self._dtype.itemsize == 1:
            return int(body.max())
        # torch does not compare uint16; as int16 with their highest bits turned they compare alike.
        return int(body.view(torch.int16).bitwise_xor(-32768).max()) + 32768

    def _header(self, shard: int, size_bytes: int, context: StepContext) -> Header:
        """The header of a payload of some size, itself included."""
        elems, body_bytes = self._elems[shard], size_bytes - HEADER_BYTES
        return Header(WIRE_ID, context.epoch, context.step, self._unit, elems, body_bytes)


@dataclass(eq=False)
class RotatedSum(ShardSum):
    """The sum of one step's codes, as the integers that they stand for.

    The owner of a shard adds them up, and sends all the sums, without decoding, encoding or
    rounding again.

    Attributes:
        wire: The payloads.
        sealed: Memory for the sums of the own shard.
    """

    wire: RotatedPayloads
    sealed: torch.Tensor

    exact = False  # sums are longer than codes

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless it is what `sender` owes for the step."""
        owner = self.shards.owners[span]
        if owner == sender:
            self.wire.check_sums(owner, message, self.context)
        else:
            self.wire.check_codes(owner, message, self.context, sender)

    def summed(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Add up the integers of all ranks' codes.

        Args:
            span: The own shard.
            after: uint8, the checked payloads of codes of the ranks after this one.
            before: Those of the ranks before it.

        Returns:
            `sealed`: the payload of the sums. The own shard's gradients hold the mean then.
        """
        owner, sums = self.shards.owners[span], self.wire.sums(self.sealed)
        for i, payload in enumerate((*before, self.give(span), *after)):
            for part in self.wire.shards[owner]:
                part.look_up(payload, sums, add=i > 0)
        self.wire.seal(owner, self.sealed, self.context)
        self.take([(span, self.sealed)])
        return self.sealed

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Write the means of shards to the gradients, times the loss scale.

        Args:
            shared: By shard, its span and the checked payload of its sums.
        """
        for span, message in shared:
            sums = self.wire.sums(message)
            for part in self.wire.shards[self.shards.owners[span]]:
                out = part.scope.of(self.gradients)
                part.decode(sums, out, self.wire.size, self.context.loss_scale)
