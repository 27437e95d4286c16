"""fp16 and bf16: half a unit in the last place, and what is too large says so."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import Bf16, Codec, Fp16
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator


@pytest.mark.parametrize(("codec", "half_ulp"), [(Fp16(), 2.0**-11), (Bf16(), 2.0**-8)])
def test_relative_error_is_at_most_half_an_ulp(codec: Codec, half_ulp: float) -> None:
    x = torch.randn(4096, generator=generator(1))
    x = x[x.abs() > 2.0**-14]  # below, float16 has fewer digits
    error = (decoded(codec, encoded(codec, x), x.numel()).double() - x.double()).abs()
    assert float((error / x.double().abs()).max()) <= half_ulp


def test_half_precision_overflow_is_seen_and_bfloat16_has_the_range_of_float32() -> None:
    x = torch.tensor([1.0, 65520.0, -1e30])
    assert decoded(Fp16(), encoded(Fp16(), x), 3).isfinite().tolist() == [True, False, False]
    assert decoded(Bf16(), encoded(Bf16(), x), 3).isfinite().all()


def test_what_only_the_loss_scale_makes_too_large_for_the_payload_is_kept_whole() -> None:
    x, residual = torch.tensor([1.0, 1e6, -1e6, 1e7]), torch.tensor([0.0, 5.0, 0.0, 7.0])
    payload = torch.zeros(8, dtype=torch.uint8)
    Fp16().encode_feedback(x, residual, payload, DRAW, loss_scale=32.0)
    assert residual.tolist() == [0.0, (1e6 + 160.0) / 32.0, -1e6 / 32.0, 7.0]
