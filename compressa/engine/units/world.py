"""What aggregators are told of a run, from its configuration."""

from __future__ import annotations

from compressa.aggregators.base import State, World
from compressa.config import Config
from compressa.config.strategies import graph_of


def world_of(config: Config, rank: int, size: int, state: State) -> World:
    """Return where a rank is.

    Args:
        config: The settings in force.
        rank: This rank.
        size: Number of ranks.
        state: Its state.

    Raises:
        ConfigError: The configuration says how other numbers of ranks average.
    """
    exchange, graph = config.exchange, graph_of(config.strategy, size)
    return World(rank, size, config.engine.seed, exchange.kind, state, exchange.inside, graph)
