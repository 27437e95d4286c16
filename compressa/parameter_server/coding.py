"""Coding: how the values of a key, or of a shard of it, become payloads and values again.

A worker pushes c_i = C(g_i + e_i) and keeps e_i. The server decodes all of them, adds them up in
the order of workers, divides by P, and answers every pull with C(mean + e), where e is a residual
of its own. So with feedback on both sides

    sum_t out_t + (1/P) sum_i e_i + e = (1/P) sum_t sum_i g_i

and what a pull brings is the same for all workers, since they decode the same bytes. The random
bits of a payload depend on the worker, the step and the index in the key alone: neither on which
rank serves it, nor, where a codec works in blocks, on how many servers there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.feedback import FeedbackRule, Residual
from compressa.aggregators.scope_coding import encode
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import scratch_tensor
from compressa.codecs.base import Codec
from compressa.codecs.none import NoCompression
from compressa.codecs.payload import HEADER_BYTES
from compressa.compressor import Compressor
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo, Segment
from compressa.wrappers import ErrorFeedback

_PIECE_ELEMS = 1 << 15  # stay in the cache


@dataclass(frozen=True)
class Coding:
    """What compresses a key.

    Attributes:
        compressor: Says where the key may be cut, and how large its payloads are.
        codec: Encodes both what is pushed and what is pulled.
        rule: How both sides keep what they did not send; None if they do not.
    """

    compressor: Compressor
    codec: Codec
    rule: FeedbackRule | None


def coding_of(
    compressor: Compressor, key: ParameterInfo, who: str = "a parameter server"
) -> Coding:
    """Resolve the compressor of a key.

    Args:
        compressor: As a configuration assigns it.
        key: The key.
        who: Whoever decodes and sums, for messages.

    Raises:
        ConfigError: It can not sum what is sent.
    """
    if compressor.breakpoints:
        raise ConfigError(
            f"key {key.name!r}: {who} keeps one compressor for all steps; leave warmup out"
        )
    own = compressor.for_parameter(key)
    if isinstance(own, ErrorFeedback):
        return Coding(own, own.contraction, own.rule)
    if isinstance(own, Codec):
        return Coding(own, own, None)
    raise ConfigError(
        f"key {key.name!r}: {own.name} is no codec with plain error feedback, whose payloads "
        f"{who} could decode and add up by themselves; choose a codec, such as int8, onebit or "
        "topk, with feedback.kind = auto, error, scaled or none, and no momentum"
    )


class ShardCoder:
    """Encodes and decodes one shard on one side, and keeps that side's residual.

    Args:
        number: The shard's number; payloads bear it.
        segment: The shard.
        coding: The key's.
        world: This worker as rank and the number of workers as size; of a server, rank 0.
        serves: Whether it is a server's: then the residual is as long as the shard, not the key.

    Attributes:
        segment: As given.
        name: The codec's.
    """

    def __init__(
        self, number: int, segment: Segment, coding: Coding, world: World, *, serves: bool
    ) -> None:
        self.segment, self.name = segment, coding.codec.name
        self._codec = coding.codec
        self._world = world
        self._scope = Scope(0, segment.start, segment)
        self._payload = ScopePayload(coding.codec, number, [self._scope], world, feedback=None)
        self._serves = serves
        self._residual: Residual | None = None
        if coding.rule is not None and (coding.rule.owner or not serves):
            kept = _alone(segment) if serves else segment
            self._residual = Residual(kept, coding.rule, world.state, world.size)

    @property
    def wire_bytes(self) -> int:
        """Most bytes of a payload, header included."""
        return self._payload.wire_bytes

    @property
    def exact(self) -> bool:
        """Whether every payload has as many."""
        return self._payload.exact

    def buffer(self) -> torch.Tensor:
        """Allocate room for one payload: uint8[wire_bytes]."""
        return self._payload.buffer()

    def encode(
        self, values: torch.Tensor, context: StepContext, room: torch.Tensor
    ) -> torch.Tensor:
        """Encode the shard's part of `values`, with what is left; return the filled front.

        Args:
            values: 1-D, contiguous, float32; the whole key, or on a server the shard.
            context: The step.
            room: From `buffer`.
        """
        payload, scope = self._payload, self._scope
        part = payload.room(room, HEADER_BYTES, scope)
        draw = payload.draw(scope, context, owner=self._serves)
        length = encode(self._codec, scope.of([values]), self._residual, part, draw, context)
        end = payload.advance(room, HEADER_BYTES, length)
        return payload.seal(room, context, end - HEADER_BYTES)

    def aggregate(
        self, pushed: Sequence[torch.Tensor], context: StepContext, room: torch.Tensor
    ) -> torch.Tensor:
        """Check all workers' payloads and encode their mean.

        Args:
            pushed: By worker, uint8 of at most `wire_bytes`.
            context: The step.
            room: From `buffer`.

        Returns:
            The filled front of `room`.

        Raises:
            PayloadError: One of them is not what is due.
        """
        for worker, part in enumerate(pushed):
            self._payload.check(part, context, worker)
        mean = scratch_tensor("server.mean", self.segment.elems, torch.float32, self._world.device)
        if isinstance(self._codec, NoCompression):
            self._average_exactly(pushed, mean)
        else:
            self._payload.average(pushed, [mean], context)
        return self.encode(mean, context, room)

    def add(
        self,
        pushed: torch.Tensor,
        values: torch.Tensor,
        weight: float,
        context: StepContext,
        worker: int,
        view: torch.Tensor | None = None,
        compensation: float = 0.0,
    ) -> None:
        """Check a worker's payload, and add `weight` times what it has to the shard's values.

        Args:
            pushed: uint8 of at most `wire_bytes`.
            values: x, float32, 1-D; updated in place.
            weight: Factor of the update u.
            context: The step of the worker.
            worker: Who sent it.
            view: h, what u was computed from, where it is to be compensated for x - h.
            compensation: c; then u - c u^2 (x - h) is added in place of u.

        Raises:
            PayloadError: It is not what is due.
        """
        self._payload.check(pushed, context, worker)
        if view is None:
            self._payload.decode_add(pushed, [values], weight, context, worker)
            return
        update = scratch_tensor("centre.update", values.numel(), torch.float32, values.device)
        self._payload.decode_add(pushed, [update.zero_()], 1.0, context, worker)
        delay = scratch_tensor("centre.delay", values.numel(), torch.float32, values.device)
        torch.sub(values, view, out=delay)
        values.add_(update, alpha=weight)
        values.add_(delay.mul_(update).mul_(update), alpha=-weight * compensation)

    def decode(
        self, answer: torch.Tensor, context: StepContext, server: int, out: torch.Tensor
    ) -> None:
        """Check a server's payload and write it to the shard's part of `out`.

        Args:
            answer: The payload, uint8 of at most `wire_bytes`.
            context: The step.
            server: The rank that sent it, for messages.
            out: 1-D, contiguous, float32; the whole key.

        Raises:
            PayloadError: It is not what is due. Nothing has been written.
        """
        self._payload.check(answer, context, server)
        self._payload.decode(answer, [out], context, 0)

    def _average_exactly(self, pushed: Sequence[torch.Tensor], mean: torch.Tensor) -> None:
        """Divide each by P, then add: bit for bit what a dense all-reduce does."""
        parts = [self._payload.parts(part)[0][1].view(torch.float32) for part in pushed]
        share = scratch_tensor("server.share", _PIECE_ELEMS, torch.float32, mean.device)
        pieces = (part.split(_PIECE_ELEMS) for part in (mean, *parts))
        for total, first, *others in zip(*pieces, strict=True):
            self._world.divide(first, out=total)
            for other in others:
                quotient = share[: total.numel()]
                self._world.divide(other, out=quotient)
                total.add_(quotient)


def _alone(segment: Segment) -> Segment:
    """Return a shard as if it were all that there is of its key."""
    whole = ParameterInfo(segment.parameter.index, segment.name, (segment.elems,))
    return Segment(whole, 0, segment.elems)
