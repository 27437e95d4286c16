"""AnswerCoder: how the values of a centre become answers, and a worker's copy of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import scratch_tensor
from compressa.bias import LOSSLESS
from compressa.codecs.base import Codec
from compressa.codecs.none import NoCompression
from compressa.codecs.payload import HEADER_BYTES, read_header
from compressa.codecs.shrunk import contraction_of
from compressa.errors import PayloadError
from compressa.parameter_server.protocol import unwrapped
from compressa.parameters import Segment


class AnswerCoder:
    """Encodes one shard's values for a worker on their server, and decodes them there.

    What is sent is the difference from the worker's copy, of which both sides know every bit. The
    header has the clock that all workers had reached in place of the step.

    Args:
        number: The shard's number; payloads bear it.
        segment: The shard.
        codec: A contraction, or unbiased, and scaled to be one then.
        world: Rank 0 of the workers, on both sides.

    Attributes:
        lossless: Whether values are sent as they are.
    """

    def __init__(self, number: int, segment: Segment, codec: Codec, world: World) -> None:
        codec = contraction_of(codec)
        scope, self._segment, self._device = Scope(0, 0, segment), segment, world.device
        self.lossless = codec.bias(segment.elems) == LOSSLESS
        self._whole = ScopePayload(NoCompression(), number, [scope], world, feedback=None)
        self._payload = ScopePayload(codec, number, [scope], world, feedback=None)

    @property
    def wire_bytes(self) -> int:
        """Most bytes of an answer, header included."""
        return self._payload.wire_bytes

    @property
    def whole_bytes(self) -> int:
        """Bytes of an answer that has the values themselves."""
        return self._whole.wire_bytes

    @property
    def exact(self) -> bool:
        """Whether every answer has as many bytes."""
        return self._payload.exact

    def buffer(self) -> torch.Tensor:
        """Allocate room for one answer of either kind."""
        return max(self._payload, self._whole, key=lambda p: p.wire_bytes).buffer()

    def encode(
        self,
        values: torch.Tensor,
        view: torch.Tensor,
        context: StepContext,
        front: int,
        room: torch.Tensor,
        *,
        whole: bool = False,
    ) -> torch.Tensor:
        """Encode what a worker's copy lacks, and add that to the server's copy of it.

        Args:
            values: x, float32, 1-D, of the shard.
            view: h, as long; x itself where nobody needs a copy.
            context: The worker's step.
            front: The step that all workers have reached.
            room: From `buffer`.
            whole: Whether to send x itself.

        Returns:
            The filled front of `room`.
        """
        exact = whole or self.lossless
        payload, sent = self._whole if whole else self._payload, values
        if not exact:
            sent = self._scratch("centre.sent")
            torch.sub(values, view, out=sent)
        filled = payload.encode([sent], context, room, owner=True, rank=0)
        head = replace(context, step=front)
        filled = payload.seal(room, head, filled.numel() - HEADER_BYTES)
        if view is not values:
            self._follow(payload, filled, view, context, exact=exact)
        return filled

    def decode(
        self,
        answer: torch.Tensor,
        view: torch.Tensor,
        context: StepContext,
        server: int,
        steps: tuple[float, float],
        *,
        whole: bool = False,
    ) -> int:
        """Check an answer, and bring a worker's copy up to date.

        Args:
            answer: uint8, as it came.
            view: h, float32, 1-D; the part of the key's that is this shard.
            context: The worker's step.
            server: Rank of the server, for messages.
            steps: The least that all workers must have reached, and the most that they can have.
            whole: Whether it has the values themselves.

        Returns:
            The step that all workers have reached.

        Raises:
            PayloadError: It is not what is due. The copy is as it was.
        """
        payload = self._whole if whole else self._payload
        front = unwrapped(read_header(answer).step, context.step)
        least, most = steps
        if not least <= front <= most:
            raise PayloadError(
                f"rank {server} answers with values of step {front}, where one from {least:g} to "
                f"{most:g} is due"
            )
        payload.check(answer, replace(context, step=front), server)
        self._follow(payload, answer, view, context, exact=whole or self.lossless)
        return front

    def _follow(
        self,
        payload: ScopePayload,
        answer: torch.Tensor,
        view: torch.Tensor,
        context: StepContext,
        *,
        exact: bool,
    ) -> None:
        out = view if exact else self._scratch("centre.got")
        payload.decode(answer, [out], context, 0)
        if not exact:
            view.add_(out)

    def _scratch(self, name: str) -> torch.Tensor:
        return scratch_tensor(name, self._segment.elems, torch.float32, self._device)
