"""What one call does to all scopes changes no bit of what ranks get and keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
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
from compressa.codecs.fused import Fused
from compressa.parameters import ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.wrappers import ErrorFeedback

MODEL = [ParameterInfo(0, "matrix", (70, 40)), ParameterInfo(1, "vector", (333,))]


def changed(codec: Codec, change: Callable[[Fused], Fused]) -> Codec:
    """The codec, of which what it does in one pass is changed."""

    class Changed(type(codec)):  # type: ignore[misc]
        @property
        def fused(self) -> Fused:
            return change(super().fused)

    return Changed(**{each.name: getattr(codec, each.name) for each in fields(codec)})


def by_stages(codec: Codec) -> Codec:
    """The codec in as many passes as there are stages."""
    return changed(codec, partial(replace, averager=None))


def scope_by_scope(codec: Codec) -> Codec:
    """The codec, of which each scope is encoded, checked and decoded by itself."""
    return changed(codec, partial(replace, encoder=None, decoder=None, checker=None))


MADE: Counter[str] = Counter()


def counting(fused: Fused) -> Fused:
    """Count what is made for scopes of some addresses."""

    def counted(name: str, make: Any) -> Any:
        def made(*given: object) -> object:
            MADE[name] += 1
            return make(*given)

        return made

    names = [name for name in ("encoder", "decoder", "averager") if getattr(fused, name)]
    return replace(fused, **{name: counted(name, getattr(fused, name)) for name in names})


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
    ("codec", "feedback"),
    [
        (Int4(), True),
        (Int4(mapping="maxmin"), False),
        (Int8(mapping="maxmin"), True),
        (OneBit(block=64), True),
        (OneBit(), False),
        (Int8(rounding="stochastic"), False),
    ],
)
def test_one_pass_changes_no_bit(codec: Codec, feedback: bool) -> None:
    pairs = zip(outcome(codec, feedback, 3), outcome(by_stages(codec), feedback, 3), strict=True)
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
    MADE.clear()
    codec = changed(Int4(), counting)
    compressor = codec if rule is None else ErrorFeedback(codec=codec, rule=rule)
    world = LoopbackWorld(2, MODEL, compressor, exchange="scatter_reduce")
    world.step([{p.name: torch.ones(p.shape) for p in MODEL}] * 2)
    assert bool(MADE["averager"]) == passes


@pytest.mark.parametrize(
    ("codec", "exchange", "parts"),
    [
        (Int8(), "scatter_reduce", {"encoder", "decoder", "averager"}),
        (Threshold(threshold=2.0), "all_gather", {"encoder", "decoder"}),
    ],
)
def test_gradients_that_lie_elsewhere_are_taken_by_what_was_made(
    codec: Codec, exchange: str, parts: set[str]
) -> None:
    """An optimizer that lets go of gradients has them made anew, elsewhere, in each step."""
    MADE.clear()
    worlds = [
        LoopbackWorld(2, MODEL, ErrorFeedback(codec=each), exchange=exchange)
        for each in (changed(codec, counting), codec)
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
    assert set(MADE) == parts


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
