"""sidco: a fitted threshold leaves nearly k elements, and never more than 1.2 k."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import SIDCo
from compressa.errors import ConfigError
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
    assert one < 100
    assert all(1600 <= sent <= 2400 for sent in more)


def test_what_is_sent_is_the_largest() -> None:
    x, codec = vectors(50_000)["gaussian"], SIDCo(density=0.05)
    out = decoded(codec, encoded(codec, x), x.numel())
    assert out[out != 0].abs().min() >= x[out == 0].abs().max()


def test_of_heavy_tails_and_ties_at_most_a_fifth_too_many_are_sent() -> None:
    codec, x = SIDCo(density=0.01, stages=1), torch.zeros(10_000)
    x[:400] = 1000.0  # the mean is 40, the threshold 40 ln 100
    sent = decoded(codec, encoded(codec, x), 10_000).nonzero()[:, 0].tolist()
    assert sent == list(range(120))


@pytest.mark.parametrize(("density", "stages"), [(0.0, 1), (1.1, 1), (0.1, 0)])
def test_impossible_settings_are_refused(density: float, stages: int) -> None:
    with pytest.raises(ConfigError, match=r"sidco: (density|stages) must be"):
        SIDCo(density=density, stages=stages)
