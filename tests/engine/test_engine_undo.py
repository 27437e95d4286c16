"""Undo: a step that is taken back leaves no trace, and what is handed over keeps its share."""

from __future__ import annotations

import pytest
import torch
from compressor_cases import ALL, AROUND, with_feedback

from compressa.aggregators import narrow
from compressa.aggregators.base import Merge, State
from compressa.engine.undo import Undo, handed_over
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import MODEL, model_gradients

CASES = {**ALL, **AROUND}
WEIGHT = ParameterInfo(0, "weight", (1000,))


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_was_taken_back_can_be_repeated_bit_by_bit(name: str) -> None:
    world = LoopbackWorld(3, MODEL, with_feedback(CASES[name]))
    for step in range(2):
        world.step(model_gradients(3, step))
    undos = [Undo(state) for state in world.states]
    for undo in undos:
        undo.keep(2)
    kept = [{key: v.clone() for key, v in state.vectors.items()} for state in world.states]
    first = world.step(model_gradients(3, 2))
    after = [{key: v.clone() for key, v in state.vectors.items()} for state in world.states]
    for undo in undos:
        undo.restore()
    check_same(kept, world.states)
    world.next_step -= 1
    second = world.step(model_gradients(3, 2))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    check_same(after, world.states)


def check_same(due: list[dict[str, torch.Tensor]], states: list[State]) -> None:
    for vectors, state in zip(due, states, strict=True):
        assert vectors.keys() == state.vectors.keys()
        assert all(torch.equal(vectors[key], state.vectors[key]) for key in vectors)


def test_what_was_kept_in_another_form_comes_back_in_its_own() -> None:
    state = State()
    state.residual(WEIGHT, "int8")
    undo = Undo(state)
    undo.keep(0)
    before = state.vectors["residual/weight"].clone()
    state.residual(WEIGHT, "float32").fill_(3.0)
    undo.restore()
    assert torch.equal(state.vectors["residual/weight"], before)
    undo.keep(1)
    assert undo.step == 1


@pytest.mark.parametrize("width", ["float32", "bfloat16", "int8"])
def test_what_is_owed_keeps_its_share_of_the_mean(width: narrow.Width) -> None:
    before, after = State(), State()
    before.residual(WEIGHT).copy_(torch.linspace(-1, 1, 1000))
    owed = before.residual(WEIGHT).clone()
    before.residual(WEIGHT, width)
    after.residual(WEIGHT, width)
    made = handed_over(before, after, 0.5)["residual/weight"]
    assert narrow.width_of(made) == width
    assert torch.allclose(narrow.widened(made), owed / 2, atol=0.0 if width == "float32" else 0.01)


def test_what_all_ranks_share_stays_and_estimates_become_their_mean() -> None:
    before, after = State(), State()
    for state in (before, after):
        for kind, merge in (("q", Merge.FIRST), ("ef21", Merge.SUM), ("ef21_mean", Merge.FIRST)):
            state.vector(kind, WEIGHT, 1000, merge)
    for value, kind in enumerate(("q", "ef21", "ef21_mean")):
        before.vectors[f"{kind}/weight"].fill_(value + 1.0)
    made = handed_over(before, after, 2 / 3)
    assert {key: float(vector[0]) for key, vector in made.items()} == {
        "q/weight": 1.0,
        "ef21/weight": 3.0,
        "ef21_mean/weight": 3.0,
    }


def test_residuals_that_nobody_asks_for_any_more_are_handed_over_to_be_flushed() -> None:
    before, after = State(), State()
    before.residual(WEIGHT).fill_(2.0)
    made = handed_over(before, after, 0.5)
    assert torch.equal(made["residual/weight"], torch.ones(1000))
    assert after.merges["residual/weight"] is Merge.SUM
    assert "residual/weight" not in after.claimed
