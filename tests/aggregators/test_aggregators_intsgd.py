"""IntSGD: one scale for all ranks, unbiased, and sums of integers that never overflow."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.shared_scale import largest_magnitude, most_levels
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator

ELEMS = 500
VECTOR = ParameterInfo(0, "w", (ELEMS,))


def steps(size: int, gradients: list[torch.Tensor], count: int, bits: int = 8) -> torch.Tensor:
    """Return the means of `count` steps with the same gradients."""
    world = LoopbackWorld(size, [VECTOR], IntSGD(bits=bits))
    given = [{"w": gradient} for gradient in gradients]
    return torch.stack([world.step(given)[0]["w"].double() for _ in range(count)])


def spread(size: int) -> list[torch.Tensor]:
    return [torch.randn(ELEMS, generator=generator(rank)) for rank in range(size)]


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_the_largest_sum_does_not_overflow(bits: int, size: int) -> None:
    for value in (1.7, -3e38, 1e-45):
        means = steps(size, [torch.full((ELEMS,), value)] * size, 1, bits)[0]
        due = torch.full((ELEMS,), value).double()
        torch.testing.assert_close(means, due, rtol=1e-6, atol=0)
    assert size * IntSGD(bits=bits).levels(size) < 2 ** (bits - 1)


@pytest.mark.parametrize("size", [1, 3])
def test_means_are_whole_multiples_of_the_shared_unit(size: int) -> None:
    gradients = spread(size)
    scale = max(float(gradient.abs().max()) for gradient in gradients)
    unit = scale / (IntSGD().levels(size) * size)
    multiples = steps(size, gradients, 3) / unit
    assert float((multiples - multiples.round()).abs().max()) < 1e-4


@pytest.mark.parametrize("size", [1, 2, 4])
def test_means_are_unbiased_and_their_variance_is_within_the_bound(size: int) -> None:
    gradients, count = spread(size), 400
    means = steps(size, gradients, count)
    exact = torch.stack(gradients).double().mean(dim=0)
    alpha = IntSGD().levels(size) / max(float(gradient.abs().max()) for gradient in gradients)
    bound = 1 / (4 * alpha**2 * size)  # of one rank, over the number of ranks
    off = (means.mean(dim=0) - exact).square().mean()
    # The mean over elements of squared deviations; six standard deviations of its spread.
    assert float(off) <= bound / count * (1 + 6 * (2 / ELEMS) ** 0.5)
    assert float(means.var(dim=0).mean()) <= bound * (1 + 6 * (2 / (ELEMS * count)) ** 0.5)


def test_ranks_round_with_bits_of_their_own() -> None:
    gradient = spread(1)[0]
    alone, together = (float(steps(n, [gradient] * n, 200).var(dim=0).mean()) for n in (1, 4))
    coarser = (IntSGD().levels(1) / IntSGD().levels(4)) ** 2  # four ranks have fewer levels
    assert together == pytest.approx(coarser * alone / 4, rel=0.1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_on_one_rank_is_nan_on_all(value: float) -> None:
    gradients = spread(3)
    gradients[2][17] = value
    world = LoopbackWorld(3, [VECTOR], IntSGD())
    assert all(mean["w"].isnan().all() for mean in world.step([{"w": g} for g in gradients]))


def test_rounds_are_a_maximum_and_a_sum_that_a_backend_may_do() -> None:
    layout = Layout(0, (Segment(VECTOR, 0, ELEMS),))
    for bits, backend in ((8, True), (16, False), (32, True)):
        aggregator = IntSGD(bits=bits).aggregator(layout, World(0, 2, 0, "auto", State()))
        first, second = aggregator.rounds
        assert (first.capacity_bytes, first.dense) == (4, False)
        assert (second.capacity_bytes, second.dense) == (bits // 8 * ELEMS, backend)


def test_more_ranks_than_levels_are_refused() -> None:
    assert IntSGD().levels(127) == 1
    with pytest.raises(ConfigError, match="use bits = 16"):
        IntSGD().levels(128)
    with pytest.raises(ConfigError, match="bits must be 8, 16 or 32"):
        IntSGD(bits=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_most_levels_are_the_most(dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    for size in (1, 2, 3, 64, 127):
        assert most_levels(dtype, size) * size <= top < (most_levels(dtype, size) + 1) * size


def test_largest_magnitude_sees_both_signs_and_what_is_not_finite() -> None:
    assert largest_magnitude(torch.tensor([1.0, -3.0, 2.0])) == 3.0
    assert float(largest_magnitude(torch.tensor([1e-45]))) == pytest.approx(1e-45, rel=0.5)
    assert largest_magnitude(torch.empty(0)) == 0.0
    assert largest_magnitude(torch.tensor([1.0, torch.nan, 2.0])) != 3.0
    assert not largest_magnitude(torch.tensor([1.0, -torch.inf])).isfinite()
    assert largest_magnitude(torch.tensor([torch.nan, torch.inf])).isnan()
