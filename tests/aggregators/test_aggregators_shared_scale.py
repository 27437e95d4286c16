"""IntSGD and shared TernGrad: one scale for all ranks, and sums of integers that never overflow."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.shared_scale import largest_magnitude, most_levels
from compressa.aggregators.terngrad_shared import SharedTernGrad
from compressa.compressor import Compressor
from compressa.engine.units.lockstep import Lockstep
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import generator
from compressa.testing.stream_checks import check_mean_of_ranks

ELEMS = 500
VECTOR = ParameterInfo(0, "w", (ELEMS,))
LAYOUT = Layout(0, (Segment(VECTOR, 0, ELEMS),))


def spread(size: int) -> torch.Tensor:
    """Return the gradients of some ranks, of different lengths."""
    ranks = [torch.randn(ELEMS, generator=generator(rank)) * (1 + rank) for rank in range(size)]
    return torch.stack(ranks)


def steps(gradients: torch.Tensor, compressor: Compressor, count: int = 1) -> torch.Tensor:
    """Return the means of `count` steps with the same gradients, float64."""
    world = Lockstep(len(gradients), [VECTOR], compressor)
    given = ([{"w": own.clone()} for own in gradients] for _ in range(count))
    return torch.stack([world.step(step)[0]["w"].double() for step in given])


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_largest_sum_does_not_overflow(bits: int, size: int) -> None:
    for value in (1.7, -3e38, 1e-45):
        gradients = torch.full((size, ELEMS), value)
        means = steps(gradients, IntSGD(bits=bits))[0]
        torch.testing.assert_close(means, gradients[0].double(), rtol=1e-6, atol=0)
    assert size * IntSGD(bits=bits).levels(size) < 2 ** (bits - 1)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "compressor", [IntSGD(), SharedTernGrad(clip=0.0), SharedTernGrad()], ids=repr
)
def test_means_are_counts_of_the_shared_scale(compressor: Compressor, size: int) -> None:
    gradients, levels = spread(size), 1
    limits = gradients.abs().amax(dim=1)
    if isinstance(compressor, IntSGD):
        levels = compressor.levels(size)
    elif isinstance(compressor, SharedTernGrad) and compressor.clip:
        limits = torch.minimum(limits, 2.5 * gradients.square().mean(dim=1).sqrt())
    multiples = steps(gradients, compressor, 3) / (float(limits.max()) / (levels * size))
    assert float((multiples - multiples.round()).abs().max()) < 1e-4
    assert float(multiples.abs().max()) <= levels * size * (1 + 1e-6)


def test_the_variance_about_the_clipped_gradients_is_that_of_ternary_rounding() -> None:
    gradients, count, size = spread(3), 400, 3
    scale = float((2.5 * gradients.square().mean(dim=1).sqrt()).max())
    clipped = gradients.clamp(-scale, scale).double()
    assert float(gradients.abs().max()) > scale
    exact = sum(float(scale * g.abs().sum() - g.square().sum()) for g in clipped) / size**2
    errors = (steps(gradients, SharedTernGrad(), count) - clipped.mean(dim=0)).square().sum(dim=1)
    assert abs(float(errors.mean()) - exact) <= 6 * float(errors.std()) / count**0.5


def test_the_mean_of_n_ranks_with_one_gradient_has_an_nth_of_the_variance() -> None:
    check_mean_of_ranks(SharedTernGrad())


def test_a_rank_is_cut_at_the_shared_limit_and_not_at_its_own() -> None:
    short, long_ = torch.full((ELEMS,), 1e-3), torch.full((ELEMS,), 2.0)
    short[0] = 1.0  # far beyond its own two and a half root mean squares
    means = steps(torch.stack([short, long_]), SharedTernGrad(), 400)[:, 0]
    assert abs(float(means.mean()) - 1.5) <= 6 * float(means.std()) / 20


@pytest.mark.parametrize("value", [1e-45, 1e-40, 3e38])
def test_scales_of_any_size_come_back(value: float) -> None:
    gradients = torch.full((2, ELEMS), value)
    assert torch.equal(steps(gradients, SharedTernGrad(clip=0.0))[0].float(), gradients[0])
    assert torch.equal(steps(gradients, SharedTernGrad())[0].float(), gradients[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("compressor", [IntSGD(), SharedTernGrad()], ids=repr)
def test_what_is_not_finite_on_one_rank_is_nan_on_all(compressor: Compressor, value: float) -> None:
    gradients = spread(3)
    gradients[2, 17] = value
    world = Lockstep(3, [VECTOR], compressor)
    assert all(mean["w"].isnan().all() for mean in world.step([{"w": g} for g in gradients]))


def rounds(compressor: Compressor, size: int) -> list[tuple[int, torch.dtype, bool]]:
    """Bytes and dtypes of a step's rounds, and whether a backend may do them."""
    aggregator = compressor.aggregator(LAYOUT, World(0, size, 0, "auto", State()))
    return [(own.capacity_bytes, own.dtype, own.dense) for own in aggregator.rounds]


def test_rounds_are_a_maximum_and_a_sum_of_integers_that_a_backend_may_do() -> None:
    maximum = (4, torch.float32, False)
    assert rounds(IntSGD(), 2) == [maximum, (ELEMS, torch.int8, True)]
    assert rounds(IntSGD(bits=16), 2) == [maximum, (2 * ELEMS, torch.int16, False)]
    assert rounds(IntSGD(bits=32), 2) == [maximum, (4 * ELEMS, torch.int32, True)]
    # The narrowest that count all ranks.
    assert rounds(SharedTernGrad(), 127) == [maximum, (ELEMS, torch.int8, True)]
    assert rounds(SharedTernGrad(), 128) == [maximum, (2 * ELEMS, torch.int16, False)]
    with pytest.raises(ConfigError, match="32768 ranks are more than 16 bits can count"):
        rounds(SharedTernGrad(), 32768)
    assert IntSGD().levels(127) == 1
    with pytest.raises(ConfigError, match="use bits = 16"):
        IntSGD().levels(128)


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
