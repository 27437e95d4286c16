"""Which compressor to begin with, for a model, a link and a number of ranks, by predicted time.

The network's part is what `Forecast` says of a few matrices, times the size of the model. Encoding
and decoding add `CODEC_S` for each element. Of the compressors whose loss is allowed, the one that
loses least is taken among those that are nearly as fast as the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compressa.collectives.choice import Costs
from compressa.config import assign, load_config
from compressa.forecast import Forecast
from compressa.parameters import ParameterInfo, Role

CODEC_S = 4e-9
"""Seconds to encode and decode an element with its residual: about 40 bytes at a core's 10 GB/s."""

_NEARLY = 1.25
_SIDE = 1024
_MOST_MATRICES = 4  # larger models take as many times as long
_SPARE = "bf16"
SPARED = (Role.BIAS, Role.NORM, Role.EMBEDDING, Role.OUTPUT)
"""Where errors do most harm, and few elements are, embeddings apart."""


class Level(NamedTuple):
    """How much a compressor may lose.

    Attributes:
        summary: What it allows, for people.
        names: Of compressors, from the one that loses least.
        spared: Roles that go out in 16 bits if the compressor is one of `STRONG`.
    """

    summary: str
    names: tuple[str, ...]
    spared: tuple[Role, ...]


STRONG = ("powersgd", "int4", "topk", "onebit")
"""Those that need a warm-up, and parameters that are spared."""

LEVELS = {
    "careful": Level("what ends where float32 does", ("none", "bf16", "int8"), ()),
    "usual": Level(
        "what ended within 1 % of float32's loss where this library measured it",
        ("none", "bf16", "int8", "powersgd"),
        SPARED,
    ),
    "bold": Level(
        "what needs longer runs, or tuning, to reach float32's loss",
        ("none", "bf16", "int8", "powersgd", "int4", "topk", "onebit"),
        (Role.BIAS, Role.NORM),
    ),
}
"""In the order of experiments/results/full: how far each ended from float32 on the same GPT."""


@dataclass(frozen=True)
class Model:
    """What is known of a model.

    Attributes:
        elems: Of all trainable parameters.
        by_role: Elements of each role; empty if only their sum is known.
    """

    elems: int
    by_role: Mapping[Role, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Sequence[ParameterInfo]) -> Model:
        """Count the elements of each role."""
        by_role = dict.fromkeys(Role, 0)
        for parameter in parameters:
            by_role[parameter.role] += parameter.elems
        return cls(sum(by_role.values()), by_role)

    def share(self, roles: Sequence[Role]) -> float:
        """Return which share of the elements has one of these roles, as far as is known."""
        return sum(self.by_role.get(role, 0) for role in roles) / self.elems


@dataclass(frozen=True)
class Recommendation:
    """What to begin with, and why.

    Attributes:
        name: Of the compressor.
        level: How much it may lose.
        seconds: Predicted for a step's gradients, by compressor, in the level's order.
    """

    name: str
    level: str
    seconds: Mapping[str, float]

    @property
    def strong(self) -> bool:
        """Whether it needs a warm-up, and parameters that are spared."""
        return self.name in STRONG

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, as a mapping."""
        found: dict[str, Any] = {"compressor": {"name": self.name}}
        if self.strong:
            spared = [str(role) for role in LEVELS[self.level].spared]
            found["rules"] = [{"match": {"role": spared}, "compressor": _SPARE}]
            found["warmup"] = {"steps": 100, "compressor": _SPARE}
        return found


def recommend(
    model: Model, costs: Costs, ranks: int, level: str, compute_s: float = 0.0
) -> Recommendation:
    """Choose what to begin with.

    Args:
        model: What is trained.
        costs: Of the link.
        ranks: How many there are.
        level: One of `LEVELS`.
        compute_s: What a step takes to compute, behind which communication may hide.

    Example:
        >>> from compressa.collectives.cost import Link
        >>> slow = Costs(Link(message_s=50e-6, byte_s=8e-8, reduce_s=2e-10))
        >>> recommend(Model(1 << 20), slow, 4, "careful").name
        'int8'
    """
    seconds = {name: _seconds(name, model, costs, ranks, level) for name in LEVELS[level].names}
    fastest = max(min(seconds.values()), compute_s)
    name = next(name for name, each in seconds.items() if each <= _NEARLY * fastest)
    return Recommendation(name, level, seconds)


def _seconds(name: str, model: Model, costs: Costs, ranks: int, level: str) -> float:
    """Predict what the gradients of a step take: in parts, if some parameters are spared."""
    share = model.share(LEVELS[level].spared) if name in STRONG else 0.0
    spared = share and share * _whole_s(_SPARE, model.elems, costs, ranks)
    return (1 - share) * _whole_s(name, model.elems, costs, ranks) + spared


def _whole_s(name: str, elems: int, costs: Costs, ranks: int) -> float:
    """Predict what matrices of so many elements take, all by one compressor."""
    parameters = _matrices(elems)
    config = load_config({"compressor": name})
    exchanges = Forecast(config, ranks, costs).exchanges(parameters, assign(config, parameters))
    network = sum(each.seconds * count for each, count in exchanges.items() if each.seconds)
    times = elems / sum(parameter.elems for parameter in parameters)
    return times * network + (0.0 if name == "none" else CODEC_S * elems)


def _matrices(elems: int) -> list[ParameterInfo]:
    """Return matrices of so many elements, or of the most that are looked at."""
    count, rest = divmod(elems, _SIDE * _SIDE)
    shapes: list[tuple[int, ...]] = [(_SIDE, _SIDE)] * min(count, _MOST_MATRICES)
    if count < _MOST_MATRICES and rest:
        shapes.append((rest // _SIDE, _SIDE) if rest >= _SIDE else (rest,))
    return [ParameterInfo(i, f"matrix {i}", shape) for i, shape in enumerate(shapes)]
