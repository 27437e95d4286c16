"""randomk: the same indices on every rank, each with the right probability, user's seeds apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from compressa.codecs import RandomK
from compressa.errors import ConfigError
from compressa.testing.bias_checks import check_unbiased, errors
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import generator


def chosen(codec: RandomK, elems: int, **where: Any) -> list[int]:
    """Indices of the elements that are sent."""
    draw = dataclasses.replace(DRAW, **where)
    payload, out = torch.empty(codec.wire_bytes(elems), dtype=torch.uint8), torch.empty(elems)
    codec.encode(torch.ones(elems), payload, draw)
    codec.decode(payload, out, draw)
    indices: list[int] = out.nonzero()[:, 0].tolist()
    return indices


def test_indices_are_shared_by_ranks_and_stages_and_by_nothing_else() -> None:
    codec = RandomK(density=0.1)
    base = chosen(codec, 200)
    assert chosen(codec, 200, rank=5) == base
    assert chosen(codec, 200, owner=True) == base
    for other in ("seed", "step", "parameter", "start"):
        assert chosen(codec, 200, **{other: 77}) != base, other


def test_indices_do_not_depend_on_the_users_generators() -> None:
    codec, state = RandomK(density=0.1), torch.random.get_rng_state()
    try:
        torch.manual_seed(1)
        np.random.seed(1)
        first = chosen(codec, 300)
        torch.manual_seed(2)
        np.random.seed(2)
        assert chosen(codec, 300) == first
    finally:
        torch.random.set_rng_state(state)


@pytest.mark.parametrize(("elems", "density"), [(40, 0.1), (37, 0.2), (5, 0.5)])
def test_exactly_k_are_sent_and_each_with_its_probability(elems: int, density: float) -> None:
    codec, draws = RandomK(density=density), 2000
    kept, counts = codec.kept(elems), np.zeros(elems)
    for step in range(draws):
        indices = chosen(codec, elems, step=step)
        assert len(indices) == kept
        counts[indices] += 1
    edges = np.arange(kept + 1) * elems // kept
    due = np.repeat(1 / np.diff(edges), np.diff(edges))
    # Six standard deviations of a binomial count; 40 elements make a false alarm below 1e-7.
    allowed = 6 * np.sqrt(draws * due * (1 - due))
    assert (np.abs(counts - draws * due) <= allowed).all()


@pytest.mark.parametrize(("elems", "density"), [(300, 0.1), (301, 0.24)])
def test_unbiased_form_is_unbiased(elems: int, density: float) -> None:
    codec = RandomK(density=density, unbiased=True)
    x = torch.randn(elems, generator=generator(4))
    check_unbiased(codec, x, "gaussian", errors(codec, x, 400))


def test_biased_form_fails_the_unbiasedness_check() -> None:
    class Liar(RandomK):
        def bias(self, elems: int):  # type: ignore[no-untyped-def]
            return RandomK(density=self.density, unbiased=True).bias(elems)

    x = torch.randn(300, generator=generator(4))
    drawn = errors(Liar(density=0.25), x, 400)
    with pytest.raises(AssertionError, match="is off by"):
        check_unbiased(Liar(density=0.25), x, "gaussian", drawn)


@pytest.mark.parametrize("density", [0.0, -1.0, 1.01, float("nan")])
def test_impossible_densities_are_refused(density: float) -> None:
    with pytest.raises(ConfigError, match="density must be"):
        RandomK(density=density)
