"""PowerSGD and ACP-SGD: what a power iteration guarantees, and residuals that stay bounded.

Where gradients are random and the same in every step, ranks differ from their mean for good, in
every direction. Sizes are root mean squares, in those of the gradients.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.aggregators import State, World
from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.factors import FactorSum, LowRank
from compressa.aggregators.powersgd import PowerSGD
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES

MATRIX = ParameterInfo(0, "w", (32, 64))
RANKS = 4
SHAPES = [(64, 64), (96, 32), (32, 96)]
BOTH = pytest.mark.parametrize("kind", [PowerSGD, ACPSGD])
COMPRESSORS = [PowerSGD(approx_rank=4), ACPSGD(approx_rank=4)]


def residuals(world: Lockstep | LoopbackWorld, shape: tuple[int, ...]) -> torch.Tensor:
    """By rank."""
    return torch.stack([state.vectors["residual/w"].view(shape) for state in world.states])


def size(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def random_matrix(seed: int, approx_rank: int = 32) -> torch.Tensor:
    random = generator(seed)
    left = torch.randn(32, approx_rank, generator=random)
    return left @ torch.randn(approx_rank, 64, generator=random)


def world_of(kind: type[LowRank], ranks: int, approx_rank: int = 2) -> LoopbackWorld:
    return LoopbackWorld(ranks, [MATRIX], kind(approx_rank=approx_rank))


def step(world: LoopbackWorld, matrices: list[torch.Tensor], **options: Any) -> torch.Tensor:
    """One step of all ranks; returns the first one's mean."""
    return world.step([{"w": matrix} for matrix in matrices], **options)[0]["w"]


def factors(world: LoopbackWorld, rank: int = 0) -> dict[str, torch.Tensor]:
    return {k: v for k, v in world.states[rank].vectors.items() if not k.startswith("residual")}


def test_residual_is_orthogonal_to_what_was_sent_and_never_larger_than_the_matrix() -> None:
    for kind, ranks in ((PowerSGD, 1), (ACPSGD, 2)):
        world = world_of(kind, ranks, 3)
        for number in range(6):
            given_ = [random_matrix(2 * number + rank) for rank in range(ranks)]
            before = residuals(world, MATRIX.shape).clone()
            out = step(world, given_)
            left = residuals(world, MATRIX.shape)
            # PowerSGD and odd steps of ACP-SGD project on the columns of P, even ones on Q's.
            columns = kind is PowerSGD or number % 2
            for rest, matrix in zip(left, torch.stack(given_) + before, strict=True):
                inner = out.t() @ rest if columns else out @ rest.t()
                assert float(inner.norm()) <= 1e-5 * float(out.norm() * rest.norm())
                assert float(rest.norm()) <= float(matrix.norm()) * (1 + 1e-6)
            assert int(torch.linalg.matrix_rank(out, rtol=1e-4)) == 3


def test_rounds_are_as_large_as_the_factors_and_acpsgd_sends_one_of_them_a_step() -> None:
    layout = Layout(0, (Segment(MATRIX, 0, MATRIX.elems),))
    for kind, due in ((PowerSGD, [4 * 2 * 32, 4 * 2 * 64]), (ACPSGD, [4 * 2 * 64])):
        aggregator = kind(approx_rank=2).aggregator(layout, World(0, 2, 0, "auto", State()))
        assert sorted(round_.capacity_bytes for round_ in aggregator.rounds) == due
    world, before = world_of(ACPSGD, RANKS), (0, 0)
    for number in range(4):
        step(world, [random_matrix(rank) for rank in range(RANKS)])
        traffic = world.loopback.transports[0].traffic
        messages = traffic.messages - before[1]
        payload = traffic.sent_bytes - before[0] - FRAME_HEADER_BYTES * messages
        before = traffic.sent_bytes, traffic.messages
        assert payload == 2 * (RANKS - 1) * 4 * 2 * (64 if number % 2 else 32) // RANKS


@pytest.mark.parametrize("poor", [random_matrix(1, 1), torch.zeros(32, 64)], ids=["one", "zero"])
@BOTH
def test_columns_survive_gradients_of_too_low_rank(kind: type[LowRank], poor: torch.Tensor) -> None:
    world, rich, missed = world_of(kind, 2), random_matrix(2, 2), []
    for _ in range(5):
        step(world, [poor, poor])
    for _ in range(8):
        step(world, [rich, rich])
        missed.append(float(residuals(world, MATRIX.shape)[0].norm()))
    # Two live columns span the rows or the columns of a matrix of rank two, so that every step, or
    # every other one, leaves nothing of it behind; one would miss its smaller half every time.
    assert min(missed[-2:]) <= 0.1 * float(torch.linalg.svdvals(rich)[1])


@BOTH
def test_zero_gradient_stays_zero_and_keeps_finite_factors(kind: type[LowRank]) -> None:
    world = world_of(kind, 1)
    for _ in range(4):
        assert not step(world, [torch.zeros(32, 64)]).any()
    for kept in factors(world).values():
        assert kept.isfinite().all()
        assert kept.view(2, -1).any(dim=1).all()


@pytest.mark.parametrize("good", [1, 2])
@BOTH
def test_overflow_on_one_rank_reaches_all_and_keeps_factors_and_residuals(
    kind: type[LowRank], good: int
) -> None:
    world = world_of(kind, 3)
    for number in range(good):
        step(world, [random_matrix(3 * number + rank) for rank in range(3)])
    before = [{k: v.clone() for k, v in state.vectors.items()} for state in world.states]
    given_ = [random_matrix(rank) for rank in range(3)]
    given_[2][0, 0] = torch.inf
    assert all(mean["w"].isnan().all() for mean in world.step([{"w": g} for g in given_]))
    world.rollback()
    for state, kept in zip(world.states, before, strict=True):
        assert all(torch.equal(state.vectors[key], kept[key]) for key in kept)


@BOTH
def test_a_skipped_step_gives_back_the_own_matrix(kind: type[LowRank]) -> None:
    world = world_of(kind, 2)
    step(world, [random_matrix(rank) for rank in range(2)])
    before, given_ = residuals(world, MATRIX.shape).clone(), [random_matrix(5), random_matrix(6)]
    step(world, [8 * gradient for gradient in given_], loss_scale=8.0)
    world.rollback()
    left = residuals(world, MATRIX.shape)
    torch.testing.assert_close(left, before + torch.stack(given_), rtol=1e-5, atol=1e-5)


@BOTH
def test_factors_stay_the_same_on_every_rank(kind: type[LowRank]) -> None:
    world = world_of(kind, 4)
    for number in range(5):
        step(world, [random_matrix(10 * number + rank) for rank in range(4)])
    first, *others = (factors(world, rank) for rank in range(4))
    assert all(torch.equal(other[key], first[key]) for other in others for key in first)


@pytest.mark.parametrize(
    ("shape", "sums"),
    [((1024, 1024), 2048), ((16, 3, 3, 3), 16 + 27), ((97,), 0), ((3, 5), 0), ((1,), 0)],
)
def test_factors_are_made_where_they_gain(shape: tuple[int, ...], sums: int) -> None:
    assert PowerSGD(approx_rank=2).factor_elems(shape) == 2 * sums
    assert ACPSGD(approx_rank=2).factor_elems(shape) == sums
    assert ACPSGD(approx_rank=2).factor_elems((4, 5)) == 9


def test_factors_of_whole_16_bytes_lie_in_front_and_none_is_lost() -> None:
    sums = FactorSum([(3, 5), (2, 6), (1, 7), (4, 3)], [3, 4], World(0, 1, 0, "auto", State()))
    for number, x in enumerate((*sums.values, *sums.vectors)):
        x.fill_(number)
    buffer = sums.mean().values.dense
    assert buffer is not None
    due = [1] * 12 + [3] * 12 + [0] * 15 + [2] * 7 + [4] * 3 + [5] * 4
    assert buffer.tolist() == due
    assert [f.shape for f in sums.factors] == [(3, 5), (2, 6), (1, 7), (4, 3)]
    assert all((f == number).all() for number, f in enumerate(sums.factors))


# Residuals


def gradients_of(shape: tuple[int, int], ranks: int = RANKS, seed: int = 1) -> list[torch.Tensor]:
    random = generator(seed)
    return [torch.randn(shape, generator=random) for _ in range(ranks)]


def train(world: Lockstep, gradients: list[torch.Tensor]) -> torch.Tensor:
    """One step; returns the output."""
    return world.step([{"w": g.clone().view(-1)} for g in gradients])[0]["w"].view_as(gradients[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
def test_residuals_of_different_gradients_are_bounded_and_survivors_of_a_lost_rank_owe_little(
    compressor: LowRank, shape: tuple[int, int]
) -> None:
    parameters, gradients = [ParameterInfo(0, "w", shape)], gradients_of(shape)
    world, found = Lockstep(RANKS, parameters, compressor), []
    for _ in range(400):
        train(world, gradients)
        found.append(size(residuals(world, shape)))
    # All shapes have min(n, m) / approx_rank of at most 16 steps to go through all directions.
    assert max(found[200:]) <= 1.1 * max(found[:200]) <= 40

    survivors, kept = Lockstep(RANKS - 1, parameters, compressor), residuals(world, shape)[:-1]
    for new, old in zip(survivors.states, world.states, strict=False):
        for key, vector in old.vectors.items():
            new.vectors[key].copy_(vector)
    survivors.next_step = world.next_step
    owed = kept.mean(0)
    assert size(owed) <= 15
    out, mean = torch.zeros(shape, dtype=torch.float64), torch.stack(gradients[:-1]).mean(0)
    for _ in range(60):
        out += train(survivors, gradients[:-1])
    left = residuals(survivors, shape).mean(0)
    assert size(out + left - 60 * mean.double() - owed.double()) <= 1e-4 * size(out)
    assert size(left) <= 1.5 * size(residuals(world, shape).mean(0))


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
    for number in range(4):
        gradients = gradients_of(shape, ranks, 10 * seed + number)
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
    for number in range(30):
        gradients = gradients_of(shape, seed=number)
        m = torch.stack(gradients).double() + kept
        if flip:
            due, q = paper_step(m.transpose(1, 2), q)
            due = due.t()
        else:
            due, q = paper_step(m, q)
        kept = m - due
        out = step(world, gradients)
        torch.testing.assert_close(out.double(), due, rtol=1e-3, atol=1e-3)
