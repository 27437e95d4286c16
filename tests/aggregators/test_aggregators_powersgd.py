"""PowerSGD: what one power iteration guarantees, its bytes, and columns that must not die."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World
from compressa.aggregators.powersgd import PowerSGD
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES

MATRIX = ParameterInfo(0, "w", (32, 64))


def residual(world: LoopbackWorld, rank: int = 0) -> torch.Tensor:
    return world.states[rank].vectors["residual/w"].view(32, 64)


def random_matrix(seed: int, approx_rank: int = 32) -> torch.Tensor:
    random = generator(seed)
    left = torch.randn(32, approx_rank, generator=random)
    return left @ torch.randn(approx_rank, 64, generator=random)


def test_residual_is_orthogonal_to_the_output_and_never_larger_than_the_matrix() -> None:
    world = LoopbackWorld(1, [MATRIX], PowerSGD(approx_rank=3))
    for step in range(5):
        gradient = random_matrix(step)
        matrix = gradient + (residual(world) if step else 0)
        out = world.step([{"w": gradient}])[0]["w"]
        # The columns of out are those of P: P^T (M - P P^T M) = 0.
        cosine = (out.t() @ residual(world)).norm() / (out.norm() * residual(world).norm())
        assert float(cosine) <= 1e-5
        assert float((matrix - out).norm()) <= float(matrix.norm()) * (1 + 1e-6)
        assert int(torch.linalg.matrix_rank(out, rtol=1e-4)) == 3


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_approx_rank_times_rows_plus_columns(size: int) -> None:
    compressor = PowerSGD(approx_rank=2)
    layout = Layout(0, (Segment(MATRIX, 0, MATRIX.elems),))
    aggregator = compressor.aggregator(layout, World(0, size, 0, "auto", State()))
    assert sum(round_.capacity_bytes for round_ in aggregator.rounds) == 4 * 2 * (32 + 64)
    world = LoopbackWorld(size, [MATRIX], compressor)
    world.step([{"w": random_matrix(rank)} for rank in range(size)])
    traffic = world.loopback.transports[0].traffic
    payload = traffic.sent_bytes - FRAME_HEADER_BYTES * traffic.messages
    assert payload == 2 * (size - 1) * 4 * 2 * (32 + 64) // size


@pytest.mark.parametrize("early", ["rank one", "zero"])
def test_columns_survive_gradients_of_too_low_rank(early: str) -> None:
    world = LoopbackWorld(2, [MATRIX], PowerSGD(approx_rank=2))
    poor = random_matrix(1, 1) if early == "rank one" else torch.zeros(32, 64)
    for _ in range(4):
        world.step([{"w": poor}, {"w": poor}])
    rich = random_matrix(2, 2)
    for _ in range(4):
        mean = world.step([{"w": rich}, {"w": rich}])[0]["w"]
    # Two live columns capture a matrix of rank two; one would miss a part of it every step.
    assert float((mean - rich).norm()) <= 1e-3 * float(rich.norm())


def test_zero_gradient_stays_zero_and_keeps_finite_factors() -> None:
    world = LoopbackWorld(1, [MATRIX], PowerSGD(approx_rank=2))
    for _ in range(3):
        assert not world.step([{"w": torch.zeros(32, 64)}])[0]["w"].any()
    kept = world.states[0].vectors["powersgd_q/w"]
    assert kept.isfinite().all()
    assert kept.view(2, 64).any(dim=1).all()


def test_overflow_on_one_rank_reaches_all_and_keeps_factors_and_residuals() -> None:
    world = LoopbackWorld(3, [MATRIX], PowerSGD(approx_rank=2))
    world.step([{"w": random_matrix(rank)} for rank in range(3)])
    before = [{k: v.clone() for k, v in state.vectors.items()} for state in world.states]
    gradients = [{"w": random_matrix(rank)} for rank in range(3)]
    gradients[2]["w"][0, 0] = torch.inf
    assert all(mean["w"].isnan().all() for mean in world.step(gradients))
    world.rollback()
    for state, kept in zip(world.states, before, strict=True):
        assert all(torch.equal(state.vectors[key], kept[key]) for key in kept)


def test_factors_stay_the_same_on_every_rank() -> None:
    world = LoopbackWorld(4, [MATRIX], PowerSGD(approx_rank=2))
    for step in range(4):
        world.step([{"w": random_matrix(10 * step + rank)} for rank in range(4)])
    factors = [state.vectors["powersgd_q/w"] for state in world.states]
    assert all(torch.equal(factor, factors[0]) for factor in factors)


def test_mean_of_equal_gradients_does_not_depend_on_the_number_of_ranks() -> None:
    gradient, means = random_matrix(3), []
    for size in (1, 4):
        world = LoopbackWorld(size, [MATRIX], PowerSGD(approx_rank=2))
        means.append(world.step([{"w": gradient}] * size)[0]["w"])
    assert torch.allclose(means[0], means[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "due"),
    [((1024, 1024), 2 * 2048), ((16, 3, 3, 3), 2 * (16 + 27)), ((97,), 0), ((3, 5), 0), ((1,), 0)],
)
def test_factors_are_made_where_they_gain(shape: tuple[int, ...], due: int) -> None:
    assert PowerSGD(approx_rank=2).factor_elems(shape) == due


def test_impossible_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="approx_rank must be at least 1"):
        PowerSGD(approx_rank=0)
