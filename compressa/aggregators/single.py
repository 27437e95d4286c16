"""Single: adapts a codec to the engine, with or without error feedback.

`build_aggregator` does so for any compressor.
"""

from __future__ import annotations

from compressa.aggregators.base import AggregatingCompressor, Aggregator, World
from compressa.aggregators.dense import Dense
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.gather import Gathered
from compressa.aggregators.gossip import Gossiped
from compressa.aggregators.per_hop import PerHop
from compressa.aggregators.push_sum import PushSum
from compressa.aggregators.reducible import Reducible
from compressa.aggregators.scatter import Scattered
from compressa.codecs.base import Codec
from compressa.codecs.none import NoCompression
from compressa.collectives.digraphs import Digraph
from compressa.compressor import Compressor, Granularity
from compressa.errors import ConfigError
from compressa.parameters import Layout


def choose_exchange(codec: Codec, size: int, wanted: str = "auto") -> str:
    """Choose how a codec's payloads are combined; depends on nothing that timing changes.

    - Values at indices that every rank knows, and no lossy cast: sum them on the way.
    - Codecs that can be cut anywhere, from three ranks on: scatter-reduce, whose bytes do not
      grow with the number of ranks, and which sums casts in float32.
    - Else all-gather: one stage, one loss.

    Args:
        codec: The codec.
        size: Number of ranks.
        wanted: What the configuration asks for: returned as it is, unless "auto".

    Returns:
        "all_reduce", "scatter_reduce" or "all_gather".
    """
    if wanted != "auto":
        return wanted
    if codec.reduce is not None and codec.reduce.dtype.itemsize == 4:
        return "all_reduce"
    divisible = codec.granularity in (Granularity.ELEMENT, Granularity.BLOCK)
    return "scatter_reduce" if divisible and size > 2 else "all_gather"


def single(
    codec: Codec,
    layout: Layout,
    world: World,
    *,
    feedback: FeedbackRule | None = None,
) -> Aggregator:
    """Build the aggregator of one codec.

    Args:
        codec: What compresses.
        layout: The unit.
        world: Ranks, exchange and state.
        feedback: How what is lost is kept, and sent later; None to lose it.

    Raises:
        ConfigError: The wanted exchange does not fit the codec.
    """
    if isinstance(world.graph, Digraph):
        return PushSum(codec, layout, world)
    if world.graph is not None:
        return Gossiped(codec, layout, world)
    if isinstance(codec, NoCompression):
        return Dense(layout, world)
    kind = choose_exchange(codec, world.size, world.exchange)
    if kind == "scatter_reduce" and world.exchange == "auto" and feedback and feedback.momentum:
        kind = "all_gather"  # a rank's own shard would have no velocity
    if kind == "all_reduce":
        return Reducible(codec, layout, world, feedback=feedback)
    if kind == "all_gather":
        return Gathered(codec, layout, world, feedback=feedback)
    if kind == "per_hop":
        return PerHop(codec, layout, world, feedback=feedback)
    return Scattered(codec, layout, world, feedback=feedback)


def build_aggregator(compressor: Compressor, layout: Layout, world: World) -> Aggregator:
    """Build what the engine drives for one unit.

    Args:
        compressor: A codec, without feedback then, or what has rounds of its own.
        layout: The unit's segments.
        world: Ranks, exchange settings and state.

    Raises:
        ConfigError: The wanted exchange does not fit; or the compressor is one thing in one step
            and another later.
    """
    if isinstance(compressor, Codec):
        return single(compressor, layout, world)
    if isinstance(compressor, AggregatingCompressor):
        return compressor.aggregator(layout, world)
    raise ConfigError(f"{compressor.name}: ask `at(step)` for the compressor in force")
