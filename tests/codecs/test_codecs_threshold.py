"""threshold: what is large enough is sent, in the units that were asked for, up to a limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compressa.codecs import Threshold
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator

X = torch.randn(2000, generator=generator(1))


@pytest.mark.parametrize("unit", ["absolute", "rms", "max"])
def test_sends_all_that_reach_the_threshold(unit: Any) -> None:
    sizes = {"absolute": 1.0, "rms": X.double().square().mean().sqrt(), "max": X.abs().max()}
    codec = Threshold(threshold=0.7, unit=unit, max_density=1.0)
    out = decoded(codec, encoded(codec, X), 2000)
    assert torch.equal(out, torch.where(X.abs() >= 0.7 * float(sizes[unit]), X, 0.0))


def test_of_too_many_the_largest_are_sent() -> None:
    codec = Threshold(threshold=0.1, max_density=0.02)
    out = decoded(codec, encoded(codec, X), 2000)
    smallest = X.abs().sort(descending=True).values[39]
    assert torch.equal(out, torch.where(X.abs() >= smallest, X, 0.0))


def test_an_absolute_threshold_does_not_depend_on_the_loss_scale() -> None:
    codec = Threshold(threshold=2.0, max_density=1.0)
    lengths = []
    for loss_scale in (1.0, 65536.0):
        payload, residual = torch.empty(codec.wire_bytes(2000), dtype=torch.uint8), X.flip(0) / 2
        lengths.append(codec.encode_feedback(X * loss_scale, residual, payload, DRAW, loss_scale))
    assert lengths[0] == lengths[1] < codec.wire_bytes(2000)
