"""Aggregators: how the ranks' gradients of one unit become their mean."""

from compressa.aggregators.base import (
    Aggregator,
    AllGather,
    AllReduce,
    Broadcast,
    Merge,
    Round,
    State,
    StepContext,
    Verb,
    World,
)
from compressa.aggregators.single import choose_exchange, single

__all__ = [
    "Aggregator",
    "AllGather",
    "AllReduce",
    "Broadcast",
    "Merge",
    "Round",
    "State",
    "StepContext",
    "Verb",
    "World",
    "choose_exchange",
    "single",
]
