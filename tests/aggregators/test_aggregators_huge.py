"""One step of huge, finite gradients spoils no later step: what no step can send is not kept."""

from __future__ import annotations

import pytest
import torch

from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.errors import ConfigError
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.wrappers import ErrorFeedback

MATRIX = ParameterInfo(0, "w", (48, 64))
RANKS = 3
GIVEN = {"threshold": {"threshold": 0.5}}


def with_feedback(name: str) -> Compressor:
    """A compressor that keeps what it does not send, if it can."""
    compressor = COMPRESSORS[name].compressor(**GIVEN.get(name, {}))
    if not isinstance(compressor, Codec):
        return compressor
    try:
        return ErrorFeedback(codec=compressor)
    except ConfigError:  # it is unbiased
        return compressor


def huge(value: float, whole: bool, random: torch.Generator) -> torch.Tensor:
    x = torch.randn(MATRIX.shape, generator=random)
    if whole:
        return x.sign() * value
    x[5, 7] = value
    return x


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize(
    ("value", "whole", "skipped"),
    [
        (2.0**101, False, True),
        (2.0**101, True, False),
        (2.0**126, False, False),
        (2.0**126, True, True),
        (3.4e38, False, True),
        (3.4e38, True, False),
    ],
)
def test_later_steps_are_finite(name: str, value: float, whole: bool, skipped: bool) -> None:
    random = generator(3)
    world = LoopbackWorld(RANKS, [MATRIX], with_feedback(name))
    finite = []
    for step in range(5):
        gradients = [torch.randn(MATRIX.shape, generator=random) for _ in range(RANKS)]
        if step == 1:
            gradients[1] = huge(value, whole, random)
        means = world.step([{"w": x} for x in gradients])
        if step == 1 and skipped:
            world.rollback()
        finite.append(all(bool(mean["w"].isfinite().all()) for mean in means))
    assert finite[0]
    assert all(finite[3:]), finite
    vectors = [v for state in world.states for v in state.vectors.values()]
    assert all(bool(v.isfinite().all()) for v in vectors if v.is_floating_point())
