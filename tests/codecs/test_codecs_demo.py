"""demo: lengths are kept by the transform, and what is left out is bounded by its share."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bounds import measured

from compressa.codecs import DeMo
from compressa.errors import PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing.codec_checks import DRAW, encoded
from compressa.testing.inputs import generator, vectors


def cosine(n: int, j: int) -> torch.Tensor:
    angles = torch.pi * (2 * torch.arange(n, dtype=torch.float64) + 1) * j / (2 * n)
    return angles.cos().float()


@settings(max_examples=40)
@given(
    elems=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    what=st.sampled_from(["gaussian", "laplace", "spiky", "constant", "one-hot"]),
    kept=st.sampled_from([1, 4, 16, 63, 64]),
)
def test_error_is_what_the_coefficients_left_out_are(
    elems: int, seed: int, what: str, kept: int
) -> None:
    codec, x = DeMo(chunk=64, kept=kept), vectors(elems, seed)[what]
    sent = encoded(codec, x)[: 4 * codec.form.sizes(elems)[0]].view(torch.float32).double()
    length = float(x.double().square().sum())
    left_out = 1 - float(sent.square().sum()) / length
    if elems % 64 == 0:  # else the error in the padding is cut off
        assert measured(codec, x) == pytest.approx(left_out, abs=2.0**-20)
    assert measured(codec, x) <= left_out + 2.0**-20


def test_smooth_vectors_need_few_coefficients() -> None:
    x = 3 * cosine(128, 0) - cosine(128, 4) + 2 * cosine(128, 10)  # j = 0, 2, 5 of a chunk of 64
    assert measured(DeMo(chunk=64, kept=3), x) < 1e-12
    # their squares are 9, 1/2 and 2 times 64
    assert measured(DeMo(chunk=64, kept=2), x) == pytest.approx(0.5 / 11.5, rel=1e-5)


def test_worst_case_is_a_vector_whose_coefficients_are_alike() -> None:
    signs = torch.randn(64, generator=generator(1)).sign()
    x = sum(signs[j] * cosine(64, j) * (2**-0.5 if j == 0 else 1.0) for j in range(64))
    assert isinstance(x, torch.Tensor)
    assert measured(DeMo(chunk=64, kept=16), x) == pytest.approx(0.75, abs=1e-6)
    assert DeMo(chunk=64, kept=16).bias(64).delta == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "due_bytes"),
    [((64, 64), 176), ((1000, 1000), 256 * 176), ((10, 1024), 16 * 176), ((64, 4, 4, 4), 176)],
)
def test_matrices_are_cut_into_the_paper_s_tiles(shape: tuple[int, ...], due_bytes: int) -> None:
    codec = DeMo().for_parameter(ParameterInfo(0, "w", shape))
    assert codec.wire_bytes(math.prod(shape)) == due_bytes
    assert DeMo().for_parameter(ParameterInfo(0, "b", (64,))) == DeMo()
    assert DeMo(columns=1 << 20).for_parameter(ParameterInfo(0, "w", (9, 9))).columns == 81
    assert DeMo().wire_bytes(64) == 136


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_cast_of_coefficients_loses_stays_in_the_residual(
    dtype: Literal["float16", "bfloat16"],
) -> None:
    codec, x = (
        DeMo(kept=32, columns=64, value_dtype=dtype),
        torch.randn(4096, generator=generator(6)),
    )
    assert codec.wire_bytes(4096) == 2 * 32 + 48
    residual, payload = torch.zeros(4096), torch.empty(codec.wire_bytes(4096), dtype=torch.uint8)
    encode_feedback = codec.fused.encode_feedback
    assert encode_feedback is not None
    encode_feedback(x, residual, payload, DRAW, 1.0)
    out, exact = torch.empty(4096), torch.empty(4096)
    codec.decode(payload, out, DRAW)
    whole = DeMo(kept=32, columns=64)
    whole.decode(encoded(whole, x), exact, DRAW)
    assert torch.allclose(out + residual, x, atol=1e-6)
    apart = (out - exact).norm() / exact.norm()
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert eps / 20 < apart < eps / 2


def test_a_smooth_matrix_needs_few_coefficients_of_each_tile() -> None:
    x = torch.outer(cosine(128, 4), cosine(64, 1)) + 2 * torch.outer(cosine(128, 2), cosine(64, 0))
    assert measured(DeMo(kept=2, columns=64), x.ravel()) < 1e-12
    assert measured(DeMo(kept=1, columns=64), x.ravel()) == pytest.approx(1 / 9, rel=1e-5)


def test_bands_of_a_matrix_encode_like_the_whole() -> None:
    codec, x = DeMo(chunk=16, kept=5, columns=50), torch.randn(70, 50, generator=generator(5))
    whole, cut = torch.empty(3500), torch.empty(3500)
    codec.decode(encoded(codec, x.ravel()), whole, DRAW)
    for low in range(0, 3500, codec.block_elems):
        part = slice(low, min(low + codec.block_elems, 3500))
        codec.decode(encoded(codec, x.ravel()[part]), cut[part], DRAW)
    assert torch.equal(whole, cut)


@pytest.mark.parametrize(
    ("kept", "positions"),
    [(2, 0x00), (2, 0x33), (2, 0x12), (1, 0x10), (9, 0xFF), (9, 0x7F)],
)
def test_hostile_positions_are_refused_and_nothing_is_written(kept: int, positions: int) -> None:
    codec = DeMo(chunk=16, kept=kept)
    payload = encoded(codec, torch.randn(40, generator=generator(4)))
    payload[-codec.form.position_bytes :] = positions
    out = torch.full((40,), 7.0)
    for call in (
        lambda: codec.check(payload, 40),
        lambda: codec.decode(payload, out, DRAW),
        lambda: codec.decode_add(payload, out, 0.5, DRAW),
    ):
        with pytest.raises(PayloadError, match="different indices in order"):
            call()
    assert (out == 7.0).all()
