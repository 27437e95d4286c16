"""A shared scale with any number of levels, and with a measure of one's own."""

from __future__ import annotations

import torch

from compressa.aggregators import State, World
from compressa.aggregators.base import AllReduce, StepContext
from compressa.aggregators.shared_scale import SharedScale
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.inputs import generator

ELEMS = 4000
LAYOUT = Layout(0, (Segment(ParameterInfo(0, "w", (ELEMS,)), 0, ELEMS),))


def rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


def alone(x: torch.Tensor, step: int, clip: float) -> torch.Tensor:
    """One rank's step with three levels and a clipped scale."""
    world, out = World(0, 1, 0, "auto", State()), x.clone()
    aggregator = SharedScale(
        LAYOUT, world, levels=1, dtype=torch.int8, stream=12, measure=lambda v: clip * rms(v)
    )
    for request in aggregator.run([out], StepContext(step)):
        assert isinstance(request, AllReduce)  # a rank alone has the sum
    return out


def test_three_levels_are_minus_scale_zero_and_scale() -> None:
    x = torch.randn(ELEMS, generator=generator(0))
    scale = 2.5 * rms(x)
    out = alone(x, 0, 2.5)
    assert torch.equal(out.unique(), torch.tensor([-scale, 0.0, scale]))
    assert (out * x >= 0).all()


def test_the_error_about_the_clipped_gradient_is_what_ternary_rounding_has() -> None:
    x, clip, count = torch.randn(ELEMS, generator=generator(1)), 1.5, 200
    scale = clip * rms(x)
    clipped = x.clamp(-scale, scale).double()
    outs = torch.stack([alone(x, step, clip).double() for step in range(count)])
    exact = float(scale * clipped.abs().sum() - clipped.square().sum())
    errors = (outs - clipped).square().sum(dim=1)
    assert abs(float(errors.mean()) - exact) <= 6 * float(errors.std()) / count**0.5
    off = float((outs.mean(dim=0) - clipped).square().sum())
    assert off <= exact / count * (1 + 6 * (2 / ELEMS) ** 0.5)
