"""Momentum before compression: what is sent and what is kept add up to the velocities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compressa.codecs import DGC, Bf16, Int8, NoCompression, RandomK, TopK
from compressa.compressor import Granularity
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.conformance import check_among_ranks
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import ErrorFeedback, FeedbackRule, MomentumCorrection

WEIGHT = ParameterInfo(0, "w", (40,))
SPARSE = ErrorFeedback(codec=TopK(density=0.05))


def corrected(**changes: Any) -> MomentumCorrection:
    return MomentumCorrection(**{"compressor": SPARSE, **changes})


@pytest.mark.parametrize(
    "compressor",
    [
        corrected(compressor=ErrorFeedback(codec=DGC(density=0.05)), clip_norm=1.0),
        corrected(compressor=ErrorFeedback(codec=RandomK(density=0.05)), masking=False),
        corrected(
            compressor=ErrorFeedback(codec=Int8(block=32), rule=FeedbackRule(dtype="bfloat16"))
        ),
        corrected(compressor=Bf16()),
    ],
    ids=["dgc-clipped", "randomk-unmasked", "int8", "bf16"],
)
def test_momentum_correction_conforms(compressor: MomentumCorrection) -> None:
    check_among_ranks(compressor)


class Book:
    """Follows velocities from outside: v + sent = accumulated u, on one rank."""

    def __init__(self, *, factor: float = 0.9, masking: bool = True) -> None:
        self.world = LoopbackWorld(1, [WEIGHT], corrected(factor=factor, masking=masking))
        self.factor, self.masking = factor, masking
        self.u = torch.zeros(WEIGHT.elems)
        self.accumulated = torch.zeros(WEIGHT.elems)
        self.sent = torch.zeros(WEIGHT.elems)

    def state(self, kind: str) -> torch.Tensor:
        return self.world.states[0].vectors[f"{kind}/w"]

    def step(
        self, gradient: torch.Tensor, loss_scale: float = 1.0, *, skipped: bool = False
    ) -> None:
        out = (
            self.world.step([{"w": gradient * loss_scale}], loss_scale=loss_scale)[0]["w"]
            / loss_scale
        )
        self.u = self.factor * self.u + gradient
        self.accumulated += self.u
        if skipped:
            self.world.rollback()
            return
        self.sent += out
        if self.masking:
            self.u[out != 0] = 0.0

    def check(self) -> None:
        assert torch.allclose(self.state("momentum"), self.u, atol=1e-5)
        assert torch.allclose(self.state("residual") + self.sent, self.accumulated, atol=1e-4)


def gradient_of(step: int) -> torch.Tensor:
    return torch.randn(WEIGHT.elems, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_what_is_kept_and_sent_is_the_sum_of_velocities(masking: bool, loss_scale: float) -> None:
    """And a step that is skipped returns what was sent and masked."""
    book = Book(masking=masking)
    for step in range(40):
        book.step(gradient_of(step), loss_scale, skipped=step % 7 == 3)
        book.check()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_leaves_the_velocity_alone(value: float) -> None:
    world = LoopbackWorld(2, MODEL, corrected())
    world.step(model_gradients(2, 0))
    before = [state.vectors["momentum/weight"].clone() for state in world.states]
    gradients = model_gradients(2, 1)
    for own in gradients:
        own["weight"][0, 0] = value
    world.step(gradients, loss_scale=8.0)
    world.rollback()
    for old, state in zip(before, world.states, strict=True):
        assert torch.equal(state.vectors["momentum/weight"], old)


def test_a_waiting_parameter_keeps_its_velocity() -> None:
    world = LoopbackWorld(1, [WEIGHT], corrected())
    world.step([{"w": gradient_of(0)}])
    before = {key: v.clone() for key, v in world.states[0].vectors.items()}
    out = world.step([{"w": torch.zeros(WEIGHT.elems)}], hold_zeros=True)[0]["w"]
    assert not out.any()
    assert all(torch.equal(v, before[key]) for key, v in world.states[0].vectors.items())


def test_local_clipping_cuts_each_parameter_to_its_share_of_the_norm() -> None:
    ranks = 4
    compressor = corrected(compressor=NoCompression(), clip_norm=2.0)
    world = LoopbackWorld(ranks, MODEL, compressor)
    gradients = model_gradients(ranks, 0, 100.0)
    world.step(gradients, loss_scale=4.0)
    for rank, state in enumerate(world.states):
        for name, gradient in gradients[rank].items():
            norm = min(float(gradient.norm()) / 4.0, 2.0 / ranks**0.5)
            u = state.vectors[f"momentum/{name}"]
            assert float(u.norm()) == pytest.approx(norm, rel=1e-5)


def test_clipping_keeps_parameters_whole() -> None:
    wrapped = ErrorFeedback(codec=Int8(block=32))
    assert corrected(compressor=wrapped).granularity is Granularity.BLOCK
    whole = corrected(compressor=wrapped, clip_norm=1.0)
    assert (whole.granularity, whole.block_elems) == (Granularity.PARAMETER, 1)


def test_around_no_compression_it_is_the_momentum_of_sgd() -> None:
    world = LoopbackWorld(2, [WEIGHT], corrected(compressor=NoCompression()))
    weight = torch.zeros(WEIGHT.elems, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    moved = torch.zeros(WEIGHT.elems)
    for step in range(10):
        gradients = [gradient_of(2 * step + rank) for rank in range(2)]
        moved -= world.step([{"w": own} for own in gradients])[0]["w"]
        weight.grad = torch.stack(gradients).mean(dim=0)
        optimizer.step()
    assert torch.allclose(weight.detach(), moved, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_mean_velocity_survives_a_change_of_world(size: int) -> None:
    world = LoopbackWorld(3, MODEL, corrected())
    for step in range(3):
        world.step(model_gradients(3, step))
    other = world.resized(size)
    for p in MODEL:
        old, new = (
            sum(state.vectors[f"momentum/{p.name}"].double() for state in w.states) / w.size
            for w in (world, other)
        )
        assert torch.allclose(torch.as_tensor(old), torch.as_tensor(new), atol=1e-6)


def test_a_scatter_reduce_is_not_chosen() -> None:
    blocks = corrected(compressor=ErrorFeedback(codec=Int8(block=32)))
    chosen, gathered = (
        LoopbackWorld(4, MODEL, blocks, exchange=exchange) for exchange in ("auto", "all_gather")
    )
    gradients = model_gradients(4, 0)
    first, second = chosen.step(gradients)[0], gathered.step(gradients)[0]
    assert all(torch.equal(first[name], second[name]) for name in first)
