"""adacomp: what a repeated gradient would make the largest of its bin."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs import AdaComp
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_gradient_and_residual_count_apart(loss_scale: float) -> None:
    g, e = (torch.randn(600, generator=generator(seed)) for seed in (1, 2))
    codec, residual = AdaComp(bin_elems=60, max_density=1.0), e.clone()
    payload = torch.empty(codec.wire_bytes(600), dtype=torch.uint8)
    length = codec.encode_feedback(g * loss_scale, residual, payload, DRAW, loss_scale)
    largest = (e + g).view(-1, 60).abs().amax(dim=1, keepdim=True)
    sent = ((e + g) + g).view(-1, 60).abs() >= largest
    out = decoded(codec, payload[:length], 600) / loss_scale
    assert torch.equal(out, torch.where(sent.view(-1), e + g, 0.0))
    assert torch.equal(out + residual, e + g)


def test_of_too_many_the_largest_are_sent() -> None:
    x, codec = torch.rand(1000, generator=generator(3)), AdaComp(bin_elems=50, max_density=0.03)
    out = decoded(codec, encoded(codec, x), 1000)
    assert torch.equal(out, torch.where(x >= x.sort().values[-30], x, 0.0))
