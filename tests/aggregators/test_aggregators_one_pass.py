"""What one call does to all scopes changes no bit of what ranks get and keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from kernel_cases import same_bits

from compressa.aggregators.base import Scope, State, StepContext, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs import (
    DGC,
    AdaComp,
    Codec,
    Int4,
    Int8,
    OneBit,
    SIDCo,
    Threshold,
    TopK,
)
from compressa.codecs.fused import Fused, Item
from compressa.parameters import ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.wrappers import ErrorFeedback

MODEL = [ParameterInfo(0, "matrix", (70, 40)), ParameterInfo(1, "vector", (333,))]


@dataclass(frozen=True, kw_only=True)
class Int4ByStages(Int4):
    """Int4 in as many passes as there are stages."""

    @property
    def fused(self) -> Fused:
        return replace(super().fused, averager=None)


@dataclass(frozen=True, kw_only=True)
class Int8ByStages(Int8):
    """Int8 in as many passes as there are stages."""

    @property
    def fused(self) -> Fused:
        return replace(super().fused, averager=None)


@dataclass(frozen=True, kw_only=True)
class OneBitByStages(OneBit):
    """Scaled signs in as many passes as there are stages."""

    @property
    def fused(self) -> Fused:
        return replace(super().fused, averager=None)


AVERAGED: list[Sequence[Item]] = []


@dataclass(frozen=True, kw_only=True)
class Int4Watched(Int4):
    """Int4 that books what it makes the means of in one call."""

    @cached_property
    def fused(self) -> Fused:
        make = super().fused.averager
        assert make is not None
        return replace(
            super().fused, averager=lambda *given: AVERAGED.append(given[0]) or make(*given)
        )


def scope_by_scope(codec: Codec) -> Codec:
    """The codec, of which each scope is encoded, checked and decoded by itself."""

    class ScopeByScope(type(codec)):  # type: ignore[misc]
        @property
        def fused(self) -> Fused:
            return replace(super().fused, encoder=None, decoder=None, checker=None)

    return ScopeByScope(**{each.name: getattr(codec, each.name) for each in fields(codec)})


def outcome(
    codec: Codec, feedback: bool, ranks: int, exchange: str = "scatter_reduce"
) -> list[torch.Tensor]:
    """Means of all steps, and residuals after a step that overflowed and was skipped."""
    compressor = ErrorFeedback(codec=codec) if feedback else codec
    world = LoopbackWorld(ranks, MODEL, compressor, exchange=exchange)
    found = []
    for step in range(3):
        random = torch.Generator().manual_seed(step)
        gradients = [
            {p.name: torch.randn(p.shape, generator=random) for p in MODEL} for _ in range(ranks)
        ]
        if step == 2:
            gradients[0]["matrix"][3, 5] = torch.inf
            gradients[-1]["vector"][7] = torch.nan
        means = world.step(gradients, loss_scale=8.0, hold_zeros=step == 1)
        found += [mean for of_rank in means for mean in of_rank.values()]
        if step == 2:
            world.rollback()
        found += [vector.clone() for state in world.states for vector in state.vectors.values()]
    return found


@pytest.mark.parametrize(
    ("codec", "by_stages", "feedback"),
    [
        (Int4(), Int4ByStages(), True),
        (Int4(mapping="maxmin"), Int4ByStages(mapping="maxmin"), False),
        (Int8(mapping="maxmin"), Int8ByStages(mapping="maxmin"), True),
        (OneBit(block=64), OneBitByStages(block=64), True),
        (OneBit(), OneBitByStages(), False),
        (Int8(rounding="stochastic"), Int8ByStages(rounding="stochastic"), False),
    ],
)
def test_one_pass_changes_no_bit(codec: Codec, by_stages: Codec, feedback: bool) -> None:
    pairs = zip(outcome(codec, feedback, 3), outcome(by_stages, feedback, 3), strict=True)
    assert all(same_bits(one.numpy(), other.numpy()) for one, other in pairs)


SPARSE = [
    TopK(density=0.01),
    TopK(density=0.3, value_dtype="float16"),
    Threshold(threshold=2.0),
    Threshold(threshold=9.0, value_dtype="bfloat16"),  # of which often nothing is sent
    Threshold(threshold=1.0, unit="rms", max_density=0.5, indices="bitmap"),
    DGC(density=0.01),
    SIDCo(density=0.01),
    AdaComp(bin_elems=50),
]


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("codec", SPARSE, ids=lambda codec: codec.name)
def test_sparse_scopes_together_give_the_bits_of_each(codec: Codec, feedback: bool) -> None:
    one_by_one = outcome(scope_by_scope(codec), feedback, 3, "all_gather")
    pairs = zip(outcome(codec, feedback, 3, "all_gather"), one_by_one, strict=True)
    assert all(same_bits(one.numpy(), other.numpy()) for one, other in pairs)


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        (FeedbackRule(), True),
        (FeedbackRule(owner=False), False),
        (FeedbackRule(dtype="bfloat16"), False),
        (FeedbackRule(beta=0.5), False),
        (FeedbackRule(decay=0.5), False),
        (None, True),
    ],
)
def test_only_a_plain_rule_is_carried_out_in_one_pass(
    rule: FeedbackRule | None, passes: bool
) -> None:
    AVERAGED.clear()
    codec = Int4Watched()
    compressor = codec if rule is None else ErrorFeedback(codec=codec, rule=rule)
    world = LoopbackWorld(2, MODEL, compressor, exchange="scatter_reduce")
    world.step([{p.name: torch.ones(p.shape) for p in MODEL}] * 2)
    assert bool(AVERAGED) == passes


MADE: Counter[str] = Counter()


def counted(name: str, make: Any) -> Any:
    def made(*given: object) -> object:
        MADE[name] += 1
        return make(*given)

    return made


@dataclass(frozen=True, kw_only=True)
class Int8Counted(Int8):
    """Int8 that counts what it makes for scopes of some addresses."""

    @cached_property
    def fused(self) -> Fused:
        own, names = super().fused, ("encoder", "decoder", "averager")
        return replace(own, **{name: counted(name, getattr(own, name)) for name in names})


def test_gradients_that_lie_elsewhere_are_taken_by_what_was_made() -> None:
    """An optimizer that lets go of gradients has them made anew, elsewhere, in each step."""
    worlds = [
        LoopbackWorld(2, MODEL, ErrorFeedback(codec=codec), exchange="scatter_reduce")
        for codec in (Int8Counted(), Int8())
    ]
    same = [{p.name: torch.empty(p.shape) for p in MODEL} for _ in range(2)]
    kept, made = [], []
    for step in range(6):
        random = torch.Generator().manual_seed(step)
        drawn = [{p.name: torch.randn(p.shape, generator=random) for p in MODEL} for _ in same]
        for own, new in zip(same, drawn, strict=True):
            for name, values in new.items():
                own[name].copy_(values)
        kept.append(drawn)  # no address comes again
        found, there = worlds[0].step(drawn), worlds[1].step(same)
        for ours, theirs in zip(found, there, strict=True):
            assert all(same_bits(ours[p.name].numpy(), theirs[p.name].numpy()) for p in MODEL)
        made.append(MADE.total())
    assert made == made[:1] * 6
    assert set(MADE) == {"encoder", "decoder", "averager"}


def test_what_was_cut_before_is_found_where_it_lies() -> None:
    """A server has the shard of a key alone, which begins at some element of the parameter."""
    info = ParameterInfo(0, "key", (1000,))
    scope, draw = Scope(0, 600, Segment(info, 600, 1000)), StepContext(0)
    world = World(0, 1, 0, "auto", State())
    payload = ScopePayload(Int8(), 0, [scope], world, feedback=None)
    room, memory, kept = payload.buffer(), [], []
    for step in range(8):  # more than there are addresses that are remembered
        memory.append(torch.full((1000,), float(step)))
        values = memory[-1][:400]
        sent = payload.encode([values], draw, room)
        values.zero_()
        payload.decode(sent, [values], draw, 0)
        kept.append(values.clone())
    for step, (values, whole) in enumerate(zip(kept, memory, strict=True)):
        torch.testing.assert_close(values, torch.full((400,), float(step)))
        assert (whole[400:] == step).all()
