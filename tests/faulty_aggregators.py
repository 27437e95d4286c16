"""Aggregators with one fault each, and a sound compressor to put them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from faulty_codecs import FaultyInt8

from compressa.aggregators.base import Aggregator, Rounds, Turn, World
from compressa.aggregators.gather import Gathered
from compressa.aggregators.powersgd import PowerSGD, PowerSGDAggregator
from compressa.codecs import Codec
from compressa.codecs.payload import HEADER_BYTES
from compressa.compressor import Compressor, Granularity
from compressa.parameters import Layout


class _ResetOnRebuild(PowerSGDAggregator):
    """Residuals that start anew with the aggregator, as when buckets are rebuilt."""

    def __init__(self, hyper: PowerSGD, layout: Layout, world: World) -> None:
        super().__init__(hyper, layout, world)
        for matrix in self._matrices:
            matrix.residual.zero_()


class ResetOnRebuild(PowerSGD):
    """Ends a phase every few steps, and loses what it kept."""

    @property
    def breakpoints(self) -> tuple[int, ...]:
        return (5, 10)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        return _ResetOnRebuild(self, layout, world)


class KeptOnRebuild(PowerSGD):
    """The same phases, without the fault."""

    @property
    def breakpoints(self) -> tuple[int, ...]:
        return (5, 10)


@dataclass(frozen=True, kw_only=True)
class Gathers(Compressor):
    """A sound compressor with an aggregator to be broken."""

    name: ClassVar[str] = "gathers"
    kind: type[Gathered] = Gathered
    codec: Codec = field(default_factory=FaultyInt8)

    @property
    def granularity(self) -> Granularity:
        return self.codec.granularity

    @property
    def block_elems(self) -> int:
        return self.codec.block_elems

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        return self.codec.payload_bytes(shape)

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        return self.kind(self.codec, layout, world, feedback=True)


class DoesNotRollBack(Gathered):
    def rollback(self, turn: Turn) -> None:
        """Nothing returns."""


class PrefersItself(Gathered):
    """Goes on with its own exact values instead of what the others decode."""

    def run(self, gradients: Any, turn: Turn) -> Rounds:
        own = [gradient.clone() for gradient in gradients]
        yield from super().run(gradients, turn)
        gradients[0].add_(own[0], alpha=1e-6)


class SumsAsTheyCome(Gathered):
    """Keeps a running value over all units and ranks: the bits depend on the order."""

    _seen = 0.0

    def run(self, gradients: Any, turn: Turn) -> Rounds:
        yield from super().run(gradients, turn)
        SumsAsTheyCome._seen = 0.5 * SumsAsTheyCome._seen + float(gradients[0][0])
        gradients[0][0] = SumsAsTheyCome._seen


class KeepsNanToItself(Gathered):
    def run(self, gradients: Any, turn: Turn) -> Rounds:
        yield from super().run(gradients, turn)
        if self._world.rank == 0:
            for gradient in gradients:
                gradient.nan_to_num_()


class IgnoresHoldZeros(Gathered):
    def run(self, gradients: Any, turn: Turn) -> Rounds:
        yield from super().run(gradients, Turn(turn.step, turn.epoch, turn.loss_scale))


class CutsItsPayload(Gathered):
    """Rank 1 sends a payload of another length than it owes."""

    extra_bytes = 0

    def run(self, gradients: Any, turn: Turn) -> Rounds:
        if self._world.rank != 1:
            yield from super().run(gradients, turn)
            return
        rounds = super().run(gradients, turn)
        request: Any = next(rounds)
        due = request.payload
        wrong = torch.zeros(max(due.numel() + self.extra_bytes, 1), dtype=torch.uint8)
        front = min(wrong.numel(), due.numel())
        wrong[:front] = due[:front]
        yield type(request)(wrong, request.incoming, request.exact)


class OneByte(CutsItsPayload):
    extra_bytes = -(1 << 30)


class OneByteTooMany(CutsItsPayload):
    extra_bytes = 1


class OneByteTooFew(CutsItsPayload):
    extra_bytes = -1


class FlipsAByte(Gathered):
    """Rank 1's payload names another unit."""

    def run(self, gradients: Any, turn: Turn) -> Rounds:
        rounds = super().run(gradients, turn)
        request: Any = next(rounds)
        if self._world.rank == 1:
            request.payload[HEADER_BYTES // 2] ^= 1
        yield from rounds_from(rounds, request)


def rounds_from(rounds: Rounds, request: Any) -> Rounds:
    """Go on with a generator whose first request has been taken already."""
    answer = yield request
    try:
        rounds.send(answer)
    except StopIteration:
        return
