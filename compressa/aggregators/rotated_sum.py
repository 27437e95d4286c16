"""RotatedSum: the sum of a step's rotated codes, as the integers that they stand for.

Each rank sends the owner of a shard its codes. The owner adds up what they stand for, in integers,
and sends all the sums, without decoding, encoding or rounding again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from compressa.aggregators.base import StepContext
from compressa.aggregators.rotated import RotatedScope, Sums
from compressa.aggregators.shards import ShardSpans, ShardSum
from compressa.arrays import as_array
from compressa.codecs.payload import HEADER_BYTES, Header, check_header, write_header
from compressa.collectives.accumulator import Span
from compressa.errors import PayloadError

WIRE_ID = 20
"""Of THC's payloads."""


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
        """Write the header."""
        write_header(payload, self._header(shard, payload.numel(), context))

    def check_codes(
        self, shard: int, payload: torch.Tensor, context: StepContext, sender: int
    ) -> None:
        """Raise PayloadError unless they are what `sender` owes the owner."""
        header = self._header(shard, self.sent_bytes[shard], context)
        check_header(payload, header, sender, exact=True)

    def check_sums(self, shard: int, payload: torch.Tensor, context: StepContext) -> None:
        """Raise PayloadError unless they are what the owner owes."""
        header = self._header(shard, self.sealed_bytes[shard], context)
        check_header(payload, header, shard, exact=True)
        if self._largest(payload) > self._most:
            raise PayloadError(
                f"thc: a sum from rank {shard} is above {self._most}, the most possible"
            )

    def sums(self, payload: torch.Tensor) -> Sums:
        """See the body of a payload as integers."""
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


class RotatedSum(ShardSum):
    """The sum of one step's codes, as the integers that they stand for."""

    def __init__(
        self,
        spans: ShardSpans,
        given: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
        wire: RotatedPayloads,
        sealed: torch.Tensor,
    ) -> None:
        super().__init__(
            spans, given, gradients, context, exact=False
        )  # sums are longer than codes
        self._wire = wire
        self._result = sealed

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless it is what `sender` owes for the step."""
        owner = self._owners[span]
        if owner == sender:
            self._wire.check_sums(owner, message, self._context)
        else:
            self._wire.check_codes(owner, message, self._context, sender)

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Add up the integers of all ranks' codes."""
        owner, sums = self._owners[span], self._wire.sums(self._result)
        for i, payload in enumerate((*before, self.give(span), *after)):
            for part in self._wire.shards[owner]:
                part.look_up(payload, sums, add=i > 0)
        self._wire.seal(owner, self._result, self._context)
        self.take(span, self._result)

    def take(self, span: Span, message: torch.Tensor) -> None:
        """Write the mean of a shard to the gradients."""
        sums = self._wire.sums(message)
        for part in self._wire.shards[self._owners[span]]:
            out = part.scope.of(self._gradients)
            part.decode(sums, out, self._wire.size, self._context.loss_scale)
