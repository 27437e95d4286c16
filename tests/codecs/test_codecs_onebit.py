"""onebit: its error is known exactly, not only bounded."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import OneBit
from compressa.errors import ConfigError
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.inputs import generator, vectors


@settings(max_examples=40)
@given(
    elems=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    what=st.sampled_from(["gaussian", "laplace", "spiky", "constant", "one-hot"]),
)
def test_contraction_constant_is_reached_with_equality(elems: int, seed: int, what: str) -> None:
    codec, x = OneBit(block=256), vectors(elems, seed)[what]
    error = decoded(codec, encoded(codec, x), elems).double() - x.double()
    delta = float(x.double().abs().sum()) ** 2 / (elems * float(x.double().square().sum()))
    ratio = float(error.square().sum() / x.double().square().sum())
    assert ratio == pytest.approx(1 - delta, abs=2.0**-20)


def test_gaussian_constant_is_two_over_pi() -> None:
    codec, x = OneBit(block=2048), torch.randn(200_000, generator=generator(3))
    error = decoded(codec, encoded(codec, x), x.numel()) - x
    ratio = float(error.double().square().sum() / x.double().square().sum())
    # The mean of 2 * 10^5 draws: 0.005 is more than five standard deviations.
    assert 1 - ratio == pytest.approx(2 / math.pi, abs=0.005)


def test_sign_of_zero_is_plus() -> None:
    out = decoded(OneBit(block=8), encoded(OneBit(block=8), torch.tensor([0.0, -0.0, 3.0])), 3)
    assert out.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("elems", "due_bytes"), [(1, 5), (64, 12), (65, 17), (72, 17), (73, 18)])
def test_size_is_exactly_packed(elems: int, due_bytes: int) -> None:
    assert OneBit(block=64).wire_bytes(elems) == due_bytes


@pytest.mark.parametrize("block", [0, 4, 12, -8])
def test_impossible_blocks_are_refused(block: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        OneBit(block=block)
