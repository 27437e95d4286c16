"""Aggregators with one fault each, and a sound compressor to put them in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from faulty_codecs import FaultyInt8

from compressa.aggregators.base import (
    AggregatingCompressor,
    Aggregator,
    Merge,
    Round,
    Rounds,
    StepContext,
    World,
)
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.gather import Gathered
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.powersgd import PowerSGD, PowerSGDAggregator
from compressa.codecs import Codec, Unbiased
from compressa.codecs.payload import HEADER_BYTES
from compressa.compressor import Wrapper
from compressa.parameters import Layout


class _ResetOnRebuild(PowerSGDAggregator):
    """Residuals that start anew with the aggregator, as when buckets are rebuilt."""

    def __init__(self, hyper: PowerSGD, layout: Layout, world: World) -> None:
        super().__init__(hyper, layout, world)
        for matrix in self._matrices:
            matrix.residual.fill(0)


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Gathers(Wrapper, AggregatingCompressor):
    """A sound compressor with an aggregator to be broken."""

    name: ClassVar[str] = "gathers"
    wraps: ClassVar[str] = "codec"
    kind: type[Gathered] = Gathered
    codec: Codec = field(default_factory=FaultyInt8)

    def __repr__(self) -> str:
        return f"Gathers(kind={self.kind.__name__}, codec={self.codec!r})"

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        return self.kind(self.codec, layout, world, feedback=FeedbackRule())


class DoesNotRollBack(Gathered):
    def rollback(self, context: StepContext) -> None:
        """Nothing returns."""


class PrefersItself(Gathered):
    """Goes on with its own exact values instead of what the others decode."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        own = [gradient.clone() for gradient in gradients]
        yield from super().run(gradients, context)
        gradients[0].add_(own[0], alpha=1e-6)


class SumsAsTheyCome(Gathered):
    """Keeps a running value over all units and ranks: the bits depend on the order."""

    _seen = 0.0

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from super().run(gradients, context)
        SumsAsTheyCome._seen = 0.5 * SumsAsTheyCome._seen + float(gradients[0][0])
        gradients[0][0] = SumsAsTheyCome._seen


class DrawsAsRankZero(Gathered):
    """Every rank rounds with the random bits of the first."""

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        super().__init__(codec, layout, world, feedback=None)
        draw = self._scopes.draw
        self._scopes.draw = lambda *arguments, **more: replace(draw(*arguments, **more), rank=0)


class PromisesTooMuch(IntSGD):
    """Half the variance that it has among ranks of one length."""

    def bias_of_mean(self, elems: int, size: int) -> Unbiased:
        return Unbiased(0.0007)


class _OnePercentMore(Aggregator):
    """Multiplies what arrives."""

    def __init__(self, inner: Aggregator) -> None:
        self._inner = inner

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self._inner.rounds

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from self._inner.run(gradients, context)
        for gradient in gradients:
            gradient.mul_(1.01)

    def rollback(self, context: StepContext) -> None:
        self._inner.rollback(context)


class GainsOnePercent(IntSGD):
    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        return _OnePercentMore(super().aggregator(layout, world))


class SumsAsRankZero(IntSGD):
    """Integers with the random bits of the first rank, on all."""

    def aggregator(self, layout: Layout, world: World) -> Aggregator:
        aggregator = super().aggregator(layout, world)
        aggregator._world = replace(world, rank=0)
        return aggregator


class KeepsNanToItself(Gathered):
    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from super().run(gradients, context)
        if self._world.rank == 0:
            for gradient in gradients:
                gradient.nan_to_num_()


class IgnoresHoldZeros(Gathered):
    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from super().run(
            gradients, StepContext(context.step, context.epoch, context.loss_scale)
        )


class ResetsOnBuild(Gathered):
    """Loses its residuals whenever another compressor was in force for a while."""

    def __init__(
        self, codec: Codec, layout: Layout, world: World, *, feedback: FeedbackRule | None
    ) -> None:
        super().__init__(codec, layout, world, feedback=feedback)
        for scope in self._scopes.scopes:
            scope.residual(world.state).zero_()


class LeaksATenThousandth(Gathered):
    """Of each residual, in each step."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        for scope in self._scopes.scopes:
            scope.residual(self._world.state).mul_(1 - 1e-4)
        yield from super().run(gradients, context)


class MakesItsStateLate(Gathered):
    def run(self, gradients: Any, context: StepContext) -> Rounds:
        parameter = self._scopes.scopes[0].segment.parameter
        self._world.state.vector("late", parameter, 1, Merge.FIRST)
        yield from super().run(gradients, context)


class RoundsTwice(Gathered):
    """What is not float32 comes out as if it were bfloat16."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from super().run(gradients, context)
        for scope, gradient in zip(self._scopes.scopes, gradients, strict=True):
            if scope.segment.parameter.dtype is not torch.float32:
                gradient.copy_(gradient.bfloat16())


class KeepsWhatOthersSend(Gathered):
    """Books everybody's mean in its own residual: a peer's NaN stays for ever."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        yield from super().run(gradients, context)
        for scope in self._scopes.scopes:
            scope.residual(self._world.state).add_(scope.of(gradients), alpha=1e-9)


class RaisesTheWrongError(Gathered):
    """Reads the header by itself, and trips over what it finds."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        rounds = super().run(gradients, context)
        request: Any = next(rounds)
        answer = yield request
        for payload in answer.values():
            if int(payload[8]) != context.step % 256:
                raise KeyError(int(payload[8]))
        yield from _finish(rounds, answer)


class CutsItsPayload(Gathered):
    """Rank 1 sends a payload of another length than it owes."""

    extra_bytes = 0

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        if self._world.rank != 1:
            yield from super().run(gradients, context)
            return
        rounds = super().run(gradients, context)
        request: Any = next(rounds)
        due = request.payload
        wrong = torch.zeros(max(due.numel() + self.extra_bytes, 1), dtype=torch.uint8)
        front = min(wrong.numel(), due.numel())
        wrong[:front] = due[:front]
        yield type(request)(wrong, request.incoming, request.scratch)


class OneByte(CutsItsPayload):
    extra_bytes = -(1 << 30)


class OneByteTooMany(CutsItsPayload):
    extra_bytes = 1


class OneByteTooFew(CutsItsPayload):
    extra_bytes = -1


class FlipsAByte(Gathered):
    """Rank 1's payload names another unit."""

    def run(self, gradients: Any, context: StepContext) -> Rounds:
        rounds = super().run(gradients, context)
        request: Any = next(rounds)
        if self._world.rank == 1:
            request.payload[HEADER_BYTES // 2] ^= 1
        yield from rounds_from(rounds, request)


def rounds_from(rounds: Rounds, request: Any) -> Rounds:
    """Go on with a generator whose first request has been taken already."""
    answer = yield request
    yield from _finish(rounds, answer)


def _finish(rounds: Rounds, answer: Any) -> Rounds:
    """Give the last answer to a generator that asks for nothing more."""
    try:
        yield rounds.send(answer)
    except StopIteration:
        return
