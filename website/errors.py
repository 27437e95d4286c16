"""What compressors lose, worked out by running them: on one gradient, at several settings.

Four ranks in one process average gradients that differ from rank to rank, as `compressa.testing`
lets them, with whatever a configuration adds that names the compressor and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from compressa import load_config
from compressa.compressors import COMPRESSORS
from compressa.config import assign
from compressa.config.choices import choice_model
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld

RANKS = 4
SHAPE = (256, 256)
STEPS = 32
_ELEMS = SHAPE[0] * SHAPE[1]

_SWEPT: dict[str, tuple[float, ...]] = {
    "density": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "max_density": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "approx_rank": (1, 2, 4, 8, 16, 32),
    "kept": (2, 8, 32, 128, 512),
    "levels": (1, 3, 7, 15, 31, 63, 127, 255),
    "block": (32, 128, 512, 2048, 8192),
    "group": (32, 128, 512, 2048, 8192),
}
"""By hyper-parameter, the values that are tried; the first that a compressor has is the one."""


@dataclass(frozen=True)
class Loss:
    """What one setting costs and loses.

    Attributes:
        setting: As a configuration has it, as "density = 0.01"; empty for the defaults.
        element_bytes: Of a rank's payload, per element.
        error: |mean of all as it arrives - the true mean| / |the true mean|, after one step.
    """

    setting: str
    element_bytes: float
    error: float


@cache
def gradients() -> tuple[torch.Tensor, ...]:
    """Return a gradient for each rank: strong directions that all share, and noise of its own.

    The noise has heavy tails, as gradients do: its magnitudes are log-normal.
    """
    random = torch.Generator().manual_seed(7)
    rows, columns = SHAPE
    strengths = torch.logspace(0, -1.5, 16)
    left, right = (torch.randn(size, 16, generator=random) for size in (rows, columns))
    shared = (left * strengths) @ right.T
    own = []
    for _ in range(RANKS):
        noise = torch.randn(SHAPE, generator=random)
        scale = torch.exp(torch.randn(SHAPE, generator=random))
        own.append(shared + 0.5 * noise * scale)
    return tuple(own)


@cache
def at_defaults(name: str) -> Loss:
    """Return what a compressor loses as it comes."""
    return _loss(name, {})


@cache
def swept(name: str) -> tuple[Loss, ...]:
    """Return what a compressor loses at several values of what decides on its bytes.

    Empty if it has none.
    """
    fields = choice_model(name, COMPRESSORS[name]).model_fields
    setting = next((known for known in _SWEPT if known in fields), None)
    if setting is None:
        return ()
    known = [value for value in _SWEPT[setting] if _allowed(name, setting, value)]
    return tuple(_loss(name, {setting: value}) for value in known)


@cache
def over_steps(name: str) -> tuple[float, ...]:
    """Return the error of the mean of all steps so far, for steps 1 to `STEPS`.

    Every step has the same gradients: what feedback keeps arrives later, and what is drawn at
    random averages out.
    """
    world, true = _world(name, {}), torch.stack(gradients()).mean(dim=0)
    total, found = torch.zeros(SHAPE), []
    for step in range(STEPS):
        total += _step(world)
        found.append(float((total / (step + 1) - true).norm() / true.norm()))
    return tuple(found)


def _allowed(name: str, setting: str, value: float) -> bool:
    model = choice_model(name, COMPRESSORS[name])
    try:
        model.model_validate({"name": name, setting: value}).build()
    except ValueError:
        return False
    return True


def _loss(name: str, settings: dict[str, float]) -> Loss:
    true = torch.stack(gradients()).mean(dim=0)
    arrived = _step(_world(name, settings))
    chosen = choice_model(name, COMPRESSORS[name]).model_validate({"name": name, **settings})
    size = chosen.build().for_parameter(_parameter()).payload_bytes(SHAPE)
    written = ", ".join(f"{key} = {value:g}" for key, value in settings.items())
    return Loss(written, size / _ELEMS, float((arrived - true).norm() / true.norm()))


def _parameter() -> ParameterInfo:
    return ParameterInfo(0, "weight", SHAPE)


def _world(name: str, settings: dict[str, float]) -> LoopbackWorld:
    config = load_config({"compressor": {"name": name, **settings}, "dense_below": {"elems": 0}})
    parameters = [_parameter()]
    return LoopbackWorld(RANKS, parameters, assign(config, parameters), unit_bytes=4 * _ELEMS)


def _step(world: LoopbackWorld) -> torch.Tensor:
    return world.step([{"weight": own} for own in gradients()])[0]["weight"]
