"""terngrad_shared: ternary values of one scale for all ranks, clipped as the paper does."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World
from compressa.aggregators.terngrad_shared import SharedTernGrad
from compressa.config import assign, load_config
from compressa.engine.units.lockstep import Lockstep
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import generator
from compressa.testing.stream_checks import check_mean_of_ranks

ELEMS = 500
VECTOR = ParameterInfo(0, "w", (ELEMS,))


def spread(size: int) -> torch.Tensor:
    """Return the gradients of some ranks, of different lengths."""
    ranks = [torch.randn(ELEMS, generator=generator(rank)) * (1 + rank) for rank in range(size)]
    return torch.stack(ranks)


def steps(gradients: torch.Tensor, compressor: SharedTernGrad, count: int) -> torch.Tensor:
    """Return the means of `count` steps with the same gradients, float64."""
    world = Lockstep(len(gradients), [VECTOR], compressor)
    given = ([{"w": own.clone()} for own in gradients] for _ in range(count))
    return torch.stack([world.step(step)[0]["w"].double() for step in given])


@pytest.mark.parametrize("clip", [0.0, 2.5])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_means_are_counts_of_the_shared_scale(size: int, clip: float) -> None:
    gradients = spread(size)
    limits = gradients.abs().amax(dim=1)
    if clip:
        limits = torch.minimum(limits, clip * gradients.square().mean(dim=1).sqrt())
    multiples = steps(gradients, SharedTernGrad(clip=clip), 3) / (float(limits.max()) / size)
    assert float((multiples - multiples.round()).abs().max()) < 1e-4
    assert float(multiples.abs().max()) <= size * (1 + 1e-6)


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
    check_mean_of_ranks(SharedTernGrad(clip=0.0))


def test_a_rank_is_cut_at_the_shared_limit_and_not_at_its_own() -> None:
    short, long_ = torch.full((ELEMS,), 1e-3), torch.full((ELEMS,), 2.0)
    short[0] = 1.0  # far beyond its own two and a half root mean squares
    means = steps(torch.stack([short, long_]), SharedTernGrad(), 400)[:, 0]
    assert abs(float(means.mean()) - 1.5) <= 6 * float(means.std()) / 20


@pytest.mark.parametrize("value", [1e-45, 1e-40, 3e38])
def test_scales_of_any_size_come_back(value: float) -> None:
    gradients = torch.full((2, ELEMS), value)
    assert torch.equal(steps(gradients, SharedTernGrad(clip=0.0), 1)[0].float(), gradients[0])
    assert torch.equal(steps(gradients, SharedTernGrad(), 1)[0].float(), gradients[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_on_one_rank_is_nan_on_all(value: float) -> None:
    gradients = spread(3)
    gradients[2, 17] = value
    assert steps(gradients, SharedTernGrad(), 1).isnan().all()


def test_the_integers_are_the_narrowest_that_count_all_ranks() -> None:
    layout = Layout(0, (Segment(VECTOR, 0, ELEMS),))

    def rounds(size: int) -> list[tuple[torch.dtype, bool]]:
        aggregator = SharedTernGrad().aggregator(layout, World(0, size, 0, "auto", State()))
        return [(own.dtype, own.dense) for own in aggregator.rounds]

    assert rounds(127) == [(torch.float32, False), (torch.int8, True)]
    assert rounds(128) == [(torch.float32, False), (torch.int16, False)]
    with pytest.raises(ConfigError, match="32768 ranks are more than 16 bits can count"):
        rounds(32768)


def test_a_configuration_can_name_it() -> None:
    config = load_config({"compressor": {"name": "terngrad_shared", "clip": 3.0}})
    large = ParameterInfo(0, "w", (5000,))
    chosen = assign(config, [large])["w"].for_parameter(large)
    assert chosen == SharedTernGrad(clip=3.0)
    with pytest.raises(ConfigError, match="clip"):
        SharedTernGrad(clip=-1.0)
