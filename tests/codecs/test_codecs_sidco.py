"""sidco: a fitted threshold leaves nearly k elements, and never more than 1.2 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import SIDCo
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.inputs import generator, vectors


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_hits_the_density_on_laplace_data_in_one_stage(density: float) -> None:
    x, codec = vectors(200_000)["laplace"], SIDCo(density=density, stages=1)
    sent = int((decoded(codec, encoded(codec, x), x.numel()) != 0).sum())
    assert abs(sent - codec.kept(x.numel())) <= 4 * codec.kept(x.numel()) ** 0.5


def test_a_second_stage_comes_near_where_the_tail_is_not_exponential() -> None:
    x = torch.randn(200_000, generator=generator(1))
    one, *more = [
        int((decoded(codec, encoded(codec, x), x.numel()) != 0).sum())
        for codec in (SIDCo(stages=1), SIDCo(stages=2), SIDCo(stages=4))
    ]
    assert one == 2000  # the fit left fewer than 100
    assert all(1600 <= sent <= 2400 for sent in more)
    assert 2000 not in more


mixtures = st.fixed_dictionaries(
    {
        "elems": st.sampled_from((1, 2, 30, 500, 5000, 70_000)),
        "far": st.integers(0, 40),
        "power": st.integers(-10, 30),
        "zeros": st.sampled_from((0.0, 0.5, 0.99, 0.999)),
        "shape": st.sampled_from(("normal", "laplace", "flat", "two levels")),
        "seed": st.integers(0, 999),
    }
)


def mixed(elems: int, far: int, power: int, zeros: float, shape: str, seed: int) -> torch.Tensor:
    """Elements of one shape, many of them zeros, and a few of another magnitude."""
    random = np.random.default_rng(seed)
    x = {
        "normal": random.standard_normal(elems),
        "laplace": random.laplace(size=elems),
        "flat": np.ones(elems),
        "two levels": np.where(random.random(elems) < 0.009, 2.0, 1.0),
    }[shape]
    x[random.random(elems) < zeros] = 0.0
    x[random.integers(elems, size=far)] = 10.0**power * random.standard_normal(far)
    return torch.from_numpy(x.astype(np.float32))


@given(mixtures, st.sampled_from((0.001, 0.01, 0.3, 1.0)), st.integers(1, 4))
@settings(max_examples=150)
def test_of_any_mixture_nearly_k_are_sent_and_no_larger_one_stays(
    mixture: dict[str, Any], density: float, stages: int
) -> None:
    x, codec = mixed(**mixture), SIDCo(density=density, stages=stages)
    out = decoded(codec, encoded(codec, x), x.numel())
    k, sent, there = codec.kept(x.numel()), int((out != 0).sum()), int((x != 0).sum())
    assert min(0.8 * k, there) <= sent <= 1.2 * k + 1
    assert there > k or sent == there
    sizes = x.double().abs().sort(descending=True).values
    assert out.double().abs().sort(descending=True).values[:sent].equal(sizes[:sent])
    missed, energy = float((x - out).double().square().sum()), float(sizes.square().sum())
    assert missed <= (1 - codec.bias(x.numel()).delta) * energy * (1 + 1e-6)


def test_of_heavy_tails_and_ties_at_most_a_fifth_too_many_are_sent() -> None:
    codec, x = SIDCo(density=0.01, stages=1), torch.zeros(10_000)
    x[:400] = 1000.0  # the mean is 40, the threshold 40 ln 100
    sent = decoded(codec, encoded(codec, x), 10_000).nonzero()[:, 0].tolist()
    assert sent == list(range(120))
