"""Aggregators: how the ranks' gradients of one unit become their mean."""

from compressa.aggregators.base import (
    AggregatingCompressor,
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
from compressa.aggregators.single import build_aggregator, choose_exchange, single

__all__ = [
    "AggregatingCompressor",
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
    "build_aggregator",
    "choose_exchange",
    "single",
]
