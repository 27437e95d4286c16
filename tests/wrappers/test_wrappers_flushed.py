"""Residuals that nobody keeps any more go with the next gradient, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Int8, NoCompression, TopK
from compressa.compressor import Compressor
from compressa.testing import LoopbackWorld, MassLedger
from compressa.testing.conformance import check_among_ranks
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import DenseBelow, ErrorFeedback, FeedbackRule, Flushed, Warmup

SPARSE = ErrorFeedback(codec=TopK(density=0.05))
SWITCH = 5


def switched(before: Compressor, after: Compressor) -> Warmup:
    return Warmup(dense=before, compressor=Flushed(compressor=after), steps=SWITCH)


def at_the_switch(
    before: Compressor, after: Compressor, size: int = 2, **options: Any
) -> LoopbackWorld:
    """A world whose next step is the first after the switch."""
    world = LoopbackWorld(size, MODEL, switched(before, after), **options)
    for step in range(SWITCH):
        world.step(model_gradients(size, step))
    return world


def residuals(world: LoopbackWorld) -> list[torch.Tensor]:
    return [state.vectors[f"residual/{p.name}"] for state in world.states for p in MODEL]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SPARSE, NoCompression()),
        (SPARSE, ErrorFeedback(codec=Int8(block=32))),
        (ErrorFeedback(codec=Int8(block=32)), SPARSE),
        (PowerSGD(approx_rank=1), NoCompression()),
        (SPARSE, DenseBelow(compressor=PowerSGD(approx_rank=1), elems=50)),
        (SPARSE, DenseBelow(compressor=SPARSE, elems=200)),
    ],
    ids=["topk-none", "topk-int8", "int8-topk", "powersgd-none", "topk-powersgd", "topk-below"],
)
@pytest.mark.parametrize("size", [1, 3])
def test_a_switch_loses_no_mass(before: Compressor, after: Compressor, size: int) -> None:
    world = LoopbackWorld(size, MODEL, switched(before, after))
    ledger = MassLedger(world)
    for step in range(12):
        loss_scale = 64.0 if step % 2 else 1.0
        gradients = model_gradients(size, step, loss_scale)
        ledger.step(world, gradients, loss_scale=loss_scale)
        ledger.check(world, f"step {step}")


def test_residuals_are_flushed_in_the_first_step_and_no_later_one() -> None:
    world = at_the_switch(SPARSE, NoCompression())
    plain = LoopbackWorld(2, MODEL, NoCompression())
    assert any(bool(residual.any()) for residual in residuals(world))
    world.step(model_gradients(2, SWITCH))
    assert not any(bool(residual.any()) for residual in residuals(world))
    gradients = model_gradients(2, SWITCH + 1)
    due, means = plain.step(gradients)[0], world.step(gradients)[0]
    assert all(torch.equal(means[name], due[name]) for name in due)


@pytest.mark.parametrize(
    "after",
    [NoCompression(), Int8(block=32), DenseBelow(compressor=SPARSE, elems=200)],
    ids=lambda compressor: compressor.name,
)
def test_the_end_of_a_warm_up_delivers_what_nobody_keeps_then(after: Compressor) -> None:
    world = LoopbackWorld(2, MODEL, Warmup(dense=SPARSE, compressor=after, steps=SWITCH))
    for step in range(SWITCH):
        world.step(model_gradients(2, step))
    assert all(bool(state.vectors["residual/bias"].any()) for state in world.states)
    given = model_gradients(2, SWITCH)
    owed = sum(state.vectors["residual/bias"].clone() for state in world.states) / 2
    mean = world.step(given)[0]["bias"].view(-1)
    due = sum(own["bias"].view(-1) for own in given) / 2 + owed
    step = float(due.abs().max()) / 127
    assert float((mean - due).abs().max()) <= (2 * step if isinstance(after, Int8) else 1e-5)
    assert not any(bool(state.vectors["residual/bias"].any()) for state in world.states)


def test_what_is_left_of_a_residual_is_delivered_whenever_it_is_not_kept() -> None:
    dense_between = Warmup(
        dense=SPARSE,
        compressor=Warmup(dense=NoCompression(), compressor=SPARSE, steps=7),
        steps=SWITCH,
    )
    world = LoopbackWorld(3, MODEL, dense_between)
    ledger = MassLedger(world)
    for step in range(12):
        ledger.step(world, model_gradients(3, step))
        ledger.check(world, f"step {step}")
        kept = any(bool(residual.any()) for residual in residuals(world))
        assert kept is not (SWITCH <= step < 7)
    world = world.resized(2)
    ledger.check(world, "resized")


def test_a_first_phase_without_residuals_changes_no_bit() -> None:
    world = LoopbackWorld(1, MODEL, Warmup(compressor=SPARSE, steps=2))
    gradients = model_gradients(1, 0)
    gradients[0]["weight"].view(-1)[3] = -0.0
    for _ in range(2):
        mean = world.step(gradients)[0]["weight"]
        assert bool(torch.signbit(mean.view(-1)[3]))


def test_a_skipped_first_step_puts_the_residual_back() -> None:
    world = at_the_switch(SPARSE, NoCompression())
    before = [residual.clone() for residual in residuals(world)]
    world.step(model_gradients(2, SWITCH))
    world.rollback()
    assert all(torch.equal(a, b) for a, b in zip(before, residuals(world), strict=True))
    world.step(model_gradients(2, SWITCH + 1))
    assert not any(bool(residual.any()) for residual in residuals(world))


def test_a_residual_waits_for_a_finite_gradient_and_for_a_used_parameter() -> None:
    world = at_the_switch(SPARSE, NoCompression(), 1, exchange="all_gather")
    before = world.states[0].vectors["residual/weight"].clone()
    unused = model_gradients(1, SWITCH)
    unused[0]["weight"].zero_()
    world.step(unused, hold_zeros=True)
    after = world.states[0].vectors["residual/weight"]
    assert torch.equal(after, before)
    bad = model_gradients(1, SWITCH + 1)
    bad[0]["weight"].view(-1)[7] = torch.inf
    world.step(bad)
    assert after[7] == before[7]
    assert torch.count_nonzero(after) <= 1


@pytest.mark.parametrize("width", ["bfloat16", "int8"])
def test_narrow_residuals_are_flushed_too(width: Any) -> None:
    narrow = ErrorFeedback(codec=TopK(density=0.05), rule=FeedbackRule(dtype=width))
    world = at_the_switch(narrow, NoCompression())
    world.step(model_gradients(2, SWITCH))
    assert not any(bool(residual.any()) for residual in residuals(world))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_flush_rounds_to_the_gradient_s_own_dtype(dtype: torch.dtype) -> None:
    parameters = [replace(p, dtype=dtype) for p in MODEL]
    world = LoopbackWorld(1, parameters, switched(SPARSE, NoCompression()))
    for step in range(SWITCH):
        world.step([{k: v.to(dtype) for k, v in model_gradients(1, step)[0].items()}])
    kept = world.states[0].vectors["residual/weight"].clone()
    gradient = {k: v.to(dtype) for k, v in model_gradients(1, SWITCH)[0].items()}
    mean = world.step([gradient])[0]["weight"]
    due = (gradient["weight"].view(-1) + kept).to(dtype)
    assert torch.equal(mean.view(-1), due)


def test_flushed_conforms() -> None:
    check_among_ranks(Flushed(compressor=ErrorFeedback(codec=Int8(block=32))), most_ranks=3)
