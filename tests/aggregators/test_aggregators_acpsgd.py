"""ACP-SGD: one all-reduce a step, what half a power iteration guarantees, and its bytes."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World
from compressa.aggregators.acpsgd import ACPSGD
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


def test_there_is_one_round_as_large_as_the_larger_factor() -> None:
    layout = Layout(0, (Segment(MATRIX, 0, MATRIX.elems),))
    aggregator = ACPSGD(approx_rank=2).aggregator(layout, World(0, 2, 0, "auto", State()))
    assert [round_.capacity_bytes for round_ in aggregator.rounds] == [4 * 2 * 64]


@pytest.mark.parametrize("size", [2, 4])
def test_each_step_sends_one_of_the_two_factors(size: int) -> None:
    world = LoopbackWorld(size, [MATRIX], ACPSGD(approx_rank=2))
    before = (0, 0)
    for step in range(4):
        world.step([{"w": random_matrix(rank)} for rank in range(size)])
        traffic = world.loopback.transports[0].traffic
        messages = traffic.messages - before[1]
        payload = traffic.sent_bytes - before[0] - FRAME_HEADER_BYTES * messages
        before = traffic.sent_bytes, traffic.messages
        assert payload == 2 * (size - 1) * 4 * 2 * (64 if step % 2 else 32) // size
        assert messages == 2 * (size - 1)


def test_residual_is_orthogonal_to_the_subspace_and_never_larger_than_the_matrix() -> None:
    world = LoopbackWorld(2, [MATRIX], ACPSGD(approx_rank=3))
    for step in range(6):
        gradients = [random_matrix(2 * step + rank) for rank in range(2)]
        before = [residual(world, rank).clone() for rank in range(2)]
        out = world.step([{"w": gradient} for gradient in gradients])[0]["w"]
        for rank, gradient in enumerate(gradients):
            matrix, rest = gradient + before[rank], residual(world, rank)
            # Even steps project the rows on the span of Q, odd ones the columns on that of P.
            inner = out.t() @ rest if step % 2 else out @ rest.t()
            assert float(inner.norm()) <= 1e-5 * float(out.norm() * rest.norm())
            assert float(rest.norm()) <= float(matrix.norm()) * (1 + 1e-6)
        assert int(torch.linalg.matrix_rank(out, rtol=1e-4)) == 3


def test_what_a_rank_keeps_does_not_grow_with_what_the_others_have() -> None:
    """Only its own projection is subtracted, so differences between ranks are sent, too."""
    world = LoopbackWorld(2, [MATRIX], ACPSGD(approx_rank=4))
    gradients, largest = [{"w": random_matrix(rank, 4)} for rank in range(2)], []
    for _ in range(80):
        world.step(gradients)
        largest.append(max(float(residual(world, rank).norm()) for rank in range(2)))
    assert max(largest[40:]) <= 1.1 * max(largest[:40])


@pytest.mark.parametrize("early", ["rank one", "zero"])
def test_columns_survive_gradients_of_too_low_rank(early: str) -> None:
    world = LoopbackWorld(2, [MATRIX], ACPSGD(approx_rank=2))
    poor = random_matrix(1, 1) if early == "rank one" else torch.zeros(32, 64)
    for _ in range(5):
        world.step([{"w": poor}, {"w": poor}])
    rich, left = random_matrix(2, 2), []
    for _ in range(8):
        world.step([{"w": rich}, {"w": rich}])
        left.append(float(residual(world).norm()))
    # Two live columns span the rows or the columns of a matrix of rank two, so that every other
    # step leaves nothing of it behind; one would miss its smaller half every time.
    smaller = float(torch.linalg.svdvals(rich)[1])
    assert min(left[-2:]) <= 0.1 * smaller


def test_zero_gradient_stays_zero_and_keeps_finite_factors() -> None:
    world = LoopbackWorld(1, [MATRIX], ACPSGD(approx_rank=2))
    for _ in range(4):
        assert not world.step([{"w": torch.zeros(32, 64)}])[0]["w"].any()
    for kind, length in (("p", 32), ("q", 64)):
        kept = world.states[0].vectors[f"acpsgd_{kind}/w"]
        assert kept.isfinite().all()
        assert kept.view(2, length).any(dim=1).all()


@pytest.mark.parametrize("good", [1, 2])
def test_overflow_on_one_rank_reaches_all_and_keeps_factors_and_residuals(good: int) -> None:
    world = LoopbackWorld(3, [MATRIX], ACPSGD(approx_rank=2))
    for step in range(good):
        world.step([{"w": random_matrix(3 * step + rank)} for rank in range(3)])
    before = [{k: v.clone() for k, v in state.vectors.items()} for state in world.states]
    gradients = [{"w": random_matrix(rank)} for rank in range(3)]
    gradients[2]["w"][0, 0] = torch.inf
    assert all(mean["w"].isnan().all() for mean in world.step(gradients))
    world.rollback()
    for state, kept in zip(world.states, before, strict=True):
        assert all(torch.equal(state.vectors[key], kept[key]) for key in kept)


def test_a_skipped_step_gives_back_the_own_matrix() -> None:
    world = LoopbackWorld(2, [MATRIX], ACPSGD(approx_rank=2))
    world.step([{"w": random_matrix(rank)} for rank in range(2)])
    before = [residual(world, rank).clone() for rank in range(2)]
    gradients = [random_matrix(5 + rank) for rank in range(2)]
    world.step([{"w": 8 * gradient} for gradient in gradients], loss_scale=8.0)
    world.rollback()
    for rank, gradient in enumerate(gradients):
        torch.testing.assert_close(residual(world, rank), before[rank] + gradient)


def test_factors_stay_the_same_on_every_rank() -> None:
    world = LoopbackWorld(4, [MATRIX], ACPSGD(approx_rank=2))
    for step in range(5):
        world.step([{"w": random_matrix(10 * step + rank)} for rank in range(4)])
    for kind in ("acpsgd_p/w", "acpsgd_q/w"):
        factors = [state.vectors[kind] for state in world.states]
        assert all(torch.equal(factor, factors[0]) for factor in factors)


@pytest.mark.parametrize(
    ("shape", "due"),
    [((1024, 1024), 2048), ((16, 3, 3, 3), 16 + 27), ((97,), 0), ((3, 5), 0), ((4, 5), 9)],
)
def test_factors_are_made_where_they_gain(shape: tuple[int, ...], due: int) -> None:
    assert ACPSGD(approx_rank=2).factor_elems(shape) == due


def test_impossible_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="acpsgd: approx_rank must be at least 1"):
        ACPSGD(approx_rank=0)
