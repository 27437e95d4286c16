"""Strategies by name: which sections there are, and what a name means for a number of ranks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import BeforeValidator, Field

from compressa.collectives.digraphs import DIGRAPHS, Digraph, weighted
from compressa.collectives.graphs import GRAPHS, Graph
from compressa.config.base import Section
from compressa.config.strategy_sections import (
    ADPSGD,
    EASGD,
    SGP,
    Async,
    Bounded,
    Central,
    DiLoCo,
    Gossip,
    Hogwild,
    Hook,
    LocalSGD,
    Overlapped,
    PostLocalSGD,
)
from compressa.errors import ConfigError

STRATEGIES: dict[str, type[Section]] = {
    "hook": Hook,
    "overlapped": Overlapped,
    "local_sgd": LocalSGD,
    "post_local_sgd": PostLocalSGD,
    "diloco": DiLoCo,
    "easgd": EASGD,
    "gossip": Gossip,
    "sgp": SGP,
    "ad_psgd": ADPSGD,
    "hogwild": Hogwild,
    "async": Async,
    "bounded": Bounded,
    "central": Central,
}
"""The model of each strategy, by name."""


def _table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


AnyStrategy = Annotated[
    Annotated[
        Hook
        | Overlapped
        | LocalSGD
        | PostLocalSGD
        | DiLoCo
        | EASGD
        | Gossip
        | SGP
        | ADPSGD
        | Hogwild
        | Async
        | Bounded
        | Central,
        Field(discriminator="name"),
    ],
    BeforeValidator(_table),
]
"""Any of them, told apart by name; a name alone stands for all defaults."""


def graph_of(strategy: AnyStrategy | None, size: int) -> Graph | Digraph | None:
    """Return who averages with whom, or sends to whom; None where all do with all.

    Args:
        strategy: What the configuration names.
        size: Number of ranks.

    Raises:
        ConfigError: It gives the weights of another number of ranks.
    """
    if not isinstance(strategy, Gossip | SGP):
        return None
    if strategy.weights is not None and len(strategy.weights) != size:
        raise ConfigError(
            f"strategy.weights has {len(strategy.weights)} rows, and there are {size} ranks; give "
            "a row for each, or a graph"
        )
    if isinstance(strategy, SGP):
        own = strategy.weights
        return DIGRAPHS[strategy.graph](size) if own is None else weighted(own)
    graph = GRAPHS[strategy.graph](size) if strategy.weights is None else Graph(strategy.weights)
    return graph.lazy(strategy.consensus)


def check_followed(
    strategy: AnyStrategy | None, caller: str, followed: Collection[str] = ()
) -> None:
    """Refuse a strategy that a caller does not follow.

    Args:
        strategy: What the configuration names; None fits everywhere.
        caller: The function that the user called.
        followed: Names of those that it follows.

    Raises:
        ConfigError: It is another one.
    """
    if strategy is not None and strategy.name not in followed:
        raise ConfigError(
            f'strategy.name = "{strategy.name}": {caller} does not follow it; call '
            "compressa.attach, which does, or leave [strategy] out"
        )
