"""EF21: estimates that follow the gradient, and whose mean all ranks know."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import QSGD, Codec, Contraction, Int4, OneBit, TopK
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.conformance import check_among_ranks
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import EF21

WEIGHT = ParameterInfo(0, "w", (1000,))


@pytest.mark.parametrize("codec", [TopK(density=0.05), QSGD(levels=16, block=64)], ids=repr)
def test_ef21_conforms(codec: Codec) -> None:
    check_among_ranks(EF21(codec=codec))


@pytest.mark.parametrize("codec", [TopK(density=0.1), OneBit(block=64), Int4(block=64)], ids=repr)
def test_the_estimate_of_a_fixed_gradient_converges_as_fast_as_the_contraction(
    codec: Codec,
) -> None:
    bias = codec.bias(WEIGHT.elems)
    assert isinstance(bias, Contraction)
    ranks = 2
    world = LoopbackWorld(ranks, [WEIGHT], EF21(codec=codec))
    gradients = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(2)]
    for step in range(1, 30):
        world.step([{"w": own} for own in gradients])
        for own, state in zip(gradients, world.states, strict=True):
            error = (own - state.vectors["ef21/w"]).double().square().sum()
            allowed = (1 - bias.delta) ** step * float(own.double().square().sum())
            assert float(error) <= allowed * (1 + 1e-4) + 1e-9


def test_what_arrives_is_the_mean_of_all_estimates() -> None:
    world = LoopbackWorld(3, MODEL, EF21(codec=TopK(density=0.05)))
    for step in range(20):
        loss_scale = 256.0 if step % 2 else 1.0
        means = world.step(model_gradients(3, step, loss_scale), loss_scale=loss_scale)
        if step % 5 == 4:
            world.rollback()
        for p in MODEL:
            own = [state.vectors[f"ef21/{p.name}"].double() for state in world.states]
            due = torch.stack(own).mean(dim=0)
            assert torch.allclose(means[0][p.name].double().view(-1) / loss_scale, due, atol=1e-5)
            shared = [state.vectors[f"ef21_mean/{p.name}"] for state in world.states]
            assert all(torch.equal(shared[0], other) for other in shared)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_estimates_agree_after_a_gradient_that_is_not_finite(value: float) -> None:
    world = LoopbackWorld(3, MODEL, EF21(codec=Int4(block=32)))
    world.step(model_gradients(3, 0))
    gradients = model_gradients(3, 1)
    gradients[2]["weight"][0, 3] = value
    means = world.step(gradients)
    assert not bool(means[0]["weight"].isfinite().all())
    own = torch.stack([state.vectors["ef21/weight"] for state in world.states])
    shared = world.states[1].vectors["ef21_mean/weight"]
    assert bool(own.isfinite().all())
    assert torch.allclose(own.mean(dim=0), shared, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_estimates_and_their_mean_survive_a_change_of_world(size: int) -> None:
    world = LoopbackWorld(3, MODEL, EF21(codec=TopK(density=0.05)))
    for step in range(4):
        world.step(model_gradients(3, step))
    other = world.resized(size)
    for state in other.states:
        for p in MODEL:
            own = torch.stack([s.vectors[f"ef21/{p.name}"] for s in other.states])
            assert torch.allclose(own.mean(0), state.vectors[f"ef21_mean/{p.name}"], atol=1e-6)
