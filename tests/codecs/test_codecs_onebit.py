"""onebit: its error is known exactly, not only bounded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bounds import measured

from compressa.codecs import OneBit
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.inputs import vectors


@settings(max_examples=40)
@given(
    elems=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    what=st.sampled_from(["gaussian", "laplace", "spiky", "constant", "one-hot"]),
)
def test_contraction_constant_is_reached_with_equality(elems: int, seed: int, what: str) -> None:
    codec, x = OneBit(block=256), vectors(elems, seed)[what]
    delta = float(x.double().abs().sum()) ** 2 / (elems * float(x.double().square().sum()))
    assert measured(codec, x) == pytest.approx(1 - delta, abs=2.0**-20)


def test_sign_of_zero_is_plus() -> None:
    out = decoded(OneBit(block=8), encoded(OneBit(block=8), torch.tensor([0.0, -0.0, 3.0])), 3)
    assert out.tolist() == [1.0, 1.0, 1.0]
