"""dgc: a sampled threshold leaves nearly k elements, and never more than 1.3 k."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import DGC
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.inputs import vectors


@pytest.mark.parametrize("density", [0.0005, 0.01, 0.2])
@pytest.mark.parametrize("what", ["gaussian", "laplace"])
def test_sends_nearly_k_and_the_largest(what: str, density: float) -> None:
    x, codec = vectors(100_000)[what], DGC(density=density)
    out = decoded(codec, encoded(codec, x), x.numel())
    k, sent = codec.kept(x.numel()), int((out != 0).sum())
    assert 0.8 * k <= sent <= 1.3 * k
    assert out[out != 0].abs().min() >= x[out == 0].abs().max()


def test_sends_k_exactly_where_many_are_equal() -> None:
    codec = DGC(density=0.01)
    out = decoded(codec, encoded(codec, torch.full((10_000,), -2.0)), 10_000)
    assert out.nonzero()[:, 0].tolist() == list(range(100))


def test_sends_the_one_element_there_is() -> None:
    for codec in (DGC(density=0.001), DGC(density=0.001, sample=0.0001)):
        x = torch.zeros(100_000)
        x[77_777] = 1e-30
        assert torch.equal(decoded(codec, encoded(codec, x), 100_000), x)
