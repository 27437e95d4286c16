"""What low-rank aggregators keep where ranks have different data: bounded, for as long as it takes.

Gradients are random and the same in every step: ranks differ from their mean for good, in every
direction. Sizes are root mean squares, in those of the gradients.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.factors import LowRank
from compressa.aggregators.powersgd import PowerSGD
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator

RANKS = 4
SHAPES = [(64, 64), (96, 32), (32, 96)]
COMPRESSORS = [PowerSGD(approx_rank=4), ACPSGD(approx_rank=4)]


def gradients_of(shape: tuple[int, int], ranks: int = RANKS, seed: int = 1) -> list[torch.Tensor]:
    random = generator(seed)
    return [torch.randn(shape, generator=random) for _ in range(ranks)]


def residuals(world: Lockstep | LoopbackWorld, shape: tuple[int, int]) -> torch.Tensor:
    """By rank."""
    return torch.stack([state.vectors["residual/w"].view(shape) for state in world.states])


def size(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def train(world: Lockstep, gradients: list[torch.Tensor]) -> torch.Tensor:
    """One step; returns the output."""
    return world.step([{"w": g.clone().view(-1)} for g in gradients])[0]["w"].view_as(gradients[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
def test_what_ranks_keep_is_bounded_over_2000_steps_of_different_gradients(
    compressor: LowRank, shape: tuple[int, int]
) -> None:
    world = Lockstep(RANKS, [ParameterInfo(0, "w", shape)], compressor)
    gradients, found = gradients_of(shape), []
    for _ in range(2000):
        train(world, gradients)
        found.append(size(residuals(world, shape)))
    # All shapes have min(n, m) / approx_rank of at most 16 steps to go through all directions.
    assert max(found[1000:]) <= 1.1 * max(found[:1000]) <= 40


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
def test_survivors_of_a_lost_rank_owe_little_and_soon_no_more_than_before(
    compressor: LowRank, shape: tuple[int, int]
) -> None:
    parameters, gradients = [ParameterInfo(0, "w", shape)], gradients_of(shape)
    before = Lockstep(RANKS, parameters, compressor)
    for _ in range(300):
        train(before, gradients)
    survivors, kept = Lockstep(RANKS - 1, parameters, compressor), residuals(before, shape)[:-1]
    for new, old in zip(survivors.states, before.states, strict=False):
        for key, vector in old.vectors.items():
            new.vectors[key].copy_(vector)
    survivors.next_step = before.next_step
    owed = kept.mean(0)
    assert size(owed) <= 15
    out, mean = torch.zeros(shape, dtype=torch.float64), torch.stack(gradients[:-1]).mean(0)
    for _ in range(60):
        out += train(survivors, gradients[:-1])
    left = residuals(survivors, shape).mean(0)
    assert size(out + left - 60 * mean.double() - owed.double()) <= 1e-4 * size(out)
    assert size(left) <= 1.5 * size(residuals(before, shape).mean(0))


@given(
    st.sampled_from(COMPRESSORS),
    st.tuples(st.integers(9, 40), st.integers(9, 40)),
    st.integers(1, 4),
    st.integers(0, 999),
)
@settings(max_examples=30)
def test_no_rank_keeps_more_than_its_own_matrix_and_the_mean_is_conserved(
    compressor: LowRank, shape: tuple[int, int], ranks: int, seed: int
) -> None:
    parameter = ParameterInfo(0, "w", shape)
    world, kept = Lockstep(ranks, [parameter], compressor), torch.zeros(ranks, *shape)
    for step in range(4):
        gradients = gradients_of(shape, ranks, 10 * seed + step)
        matrices = torch.stack(gradients) + kept
        out = train(world, gradients)
        if compressor.factor_elems(shape):
            kept = residuals(world, shape).clone()
        for rest, matrix in zip(kept, matrices, strict=True):
            assert float(rest.norm()) <= float(matrix.norm()) * (1 + 1e-5)
        assert size(out + kept.mean(0) - matrices.mean(0)) <= 1e-5 * size(matrices)


def paper_step(m: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the paper sends of all ranks' matrices, [ranks, n, m], and its next Q."""
    p = torch.linalg.qr((m @ q).mean(0))[0]
    q = (m.transpose(1, 2) @ p).mean(0)
    return p @ q.t(), q


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_those_of_the_paper_whose_residual_is_the_matrix_less_the_output(
    shape: tuple[int, int],
) -> None:
    parameter, flip = ParameterInfo(0, "w", shape), shape[0] > shape[1]
    world = LoopbackWorld(RANKS, [parameter], PowerSGD(approx_rank=4))
    state = world.states[0].vectors[f"powersgd_{'p' if flip else 'q'}/w"]
    q, kept = state.view(4, -1).t().double(), torch.zeros(RANKS, *shape, dtype=torch.float64)
    for step in range(30):
        gradients = gradients_of(shape, seed=step)
        m = torch.stack(gradients).double() + kept
        if flip:
            due, q = paper_step(m.transpose(1, 2), q)
            due = due.t()
        else:
            due, q = paper_step(m, q)
        kept = m - due
        out = world.step([{"w": g} for g in gradients])[0]["w"]
        torch.testing.assert_close(out.double(), due, rtol=1e-3, atol=1e-3)
