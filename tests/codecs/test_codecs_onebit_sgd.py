"""onebit_sgd: a projection onto two means per row, whose errors sum to nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bounds import measured

from compressa.codecs import OneBit, OneBitSGD
from compressa.compressor import Granularity
from compressa.parameters import ParameterInfo
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator, vectors


@settings(max_examples=40)
@given(
    elems=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    what=st.sampled_from(["gaussian", "laplace", "spiky", "constant", "one-hot"]),
)
def test_error_and_decoded_vector_are_orthogonal(elems: int, seed: int, what: str) -> None:
    codec, x = OneBitSGD(group=64), vectors(elems, seed)[what]
    out = decoded(codec, encoded(codec, x), elems).double()
    length = float(x.double().square().sum())
    assert float((x.double() - out) @ out) == pytest.approx(0.0, abs=2.0**-22 * length)
    assert measured(codec, x) <= measured(OneBit(block=64), x) + 2.0**-20


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 200)),
    seed=st.integers(0, 2**31),
    loss_scale=st.sampled_from([1.0, 1024.0]),
)
def test_residual_of_each_row_sums_to_zero(
    shape: tuple[int, int], seed: int, loss_scale: float
) -> None:
    codec = OneBitSGD().for_parameter(ParameterInfo(0, "w", shape))
    x = loss_scale * torch.randn(math.prod(shape), generator=generator(seed))
    residual = torch.randn(x.numel(), generator=generator(seed + 1))
    p = x + loss_scale * residual
    payload = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
    codec.encode_feedback(x, residual, payload, DRAW, loss_scale)
    for whole, left in zip(p.split(codec.group), residual.double().split(codec.group), strict=True):
        most = 2.0**-22 / loss_scale * float(whole.double().abs().sum())
        assert abs(float(left[whole < 0].sum())) <= most
        assert abs(float(left[whole >= 0].sum())) <= most


def test_worst_case_is_a_lone_positive_element() -> None:
    x = torch.zeros(50)
    x[7] = 3.0
    assert measured(OneBitSGD(group=50), x) == pytest.approx(1 - 1 / 50)
    assert OneBitSGD(group=50).bias(50).delta == pytest.approx(1 / 50, rel=1e-4)
    assert measured(OneBitSGD(group=50), -x) == 0.0  # zeros have a mean of their own


def test_two_values_of_either_sign_are_exact() -> None:
    x = torch.where(torch.randn(300, generator=generator(2)) < 0, -5.0, 0.25)
    codec = OneBitSGD(group=60)
    assert torch.equal(decoded(codec, encoded(codec, x), 300), x)


@pytest.mark.parametrize(
    ("shape", "group"),
    [
        ((24, 40), 40),
        ((16, 32, 3, 3), 288),
        ((16, 3, 3, 3), 54),
        ((5000, 1), 32),
        ((1, 77), 77),
        ((97,), 0),
        ((), 0),
        ((0, 3), 0),
        ((3, 0), 0),
    ],
)
def test_a_group_is_whole_rows_of_the_parameter(shape: tuple[int, ...], group: int) -> None:
    parameter = ParameterInfo(0, "w", shape)
    resolved = OneBitSGD().for_parameter(parameter)
    assert resolved.group == group
    assert resolved.granularity is (Granularity.BLOCK if group else Granularity.PARAMETER)
    assert OneBitSGD(group=48).for_parameter(parameter) == OneBitSGD(group=48)


def test_without_a_length_all_elements_are_one_group() -> None:
    x = torch.randn(1000, generator=generator(4))
    assert torch.equal(encoded(OneBitSGD(), x), encoded(OneBitSGD(group=1000), x))
