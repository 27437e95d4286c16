"""What is counted without data is what ranks send; and what the facts say of many ranks."""

from __future__ import annotations

import pytest
import torch

from compressa.aggregators import State, World, build_aggregator
from compressa.codecs import DeMo
from compressa.compressors import COMPRESSORS
from compressa.config import assign, load_config
from compressa.facts import BUSIEST_OF, facts
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.traffic import dense_ring_bytes, ports, ratios
from compressa.transports.frames import FRAME_HEADER_BYTES

# Ok-Topk has room for data that give one owner twice its share, and balance does not use it.
LEAST = {"oktopk": 0.4}
MATRIX = ParameterInfo(0, "weight", (96, 64))


def sent_bytes(world: LoopbackWorld) -> list[int]:
    counted = [transport.traffic for transport in world.loopback.transports]
    return [own.sent_bytes - FRAME_HEADER_BYTES * own.messages for own in counted]


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_ranks_send_what_is_counted(name: str, size: int) -> None:
    """All together; shards differ by less than a block, which moves bytes between ranks."""
    config = load_config({"compressor": name, "dense_below": {"elems": 0}})
    compressors = assign(config, [MATRIX])
    world = LoopbackWorld(size, [MATRIX], compressors, unit_bytes=4 * MATRIX.elems)
    layout = Layout(0, (Segment(MATRIX, 0, MATRIX.elems),))
    alone = compressors["weight"].for_parameter(MATRIX)
    rounds = build_aggregator(alone, layout, World(0, size, 0, "auto", State())).rounds
    counted = sum(port.sent_bytes for port in ports(rounds, size))
    gradient = torch.randn(MATRIX.shape, generator=torch.Generator().manual_seed(1))
    world.step([{"weight": gradient} for _ in range(size)])
    if varies(name):
        assert LEAST.get(name, 0.7) * counted < sum(sent_bytes(world)) <= counted
    else:
        assert sum(sent_bytes(world)) == counted


def test_shards_of_whole_bands_of_a_matrix_are_counted_as_they_are() -> None:
    """With fewer blocks than ranks, those who have one share it with all others."""
    codec, matrix = DeMo(), ParameterInfo(0, "weight", (200, 64))
    world = LoopbackWorld(8, [matrix], codec, unit_bytes=4 * matrix.elems)
    layout = Layout(0, (Segment(matrix, 0, matrix.elems),))
    own = codec.for_parameter(matrix)
    rounds = build_aggregator(own, layout, World(0, 8, 0, "auto", State())).rounds
    world.step([{"weight": torch.randn(matrix.shape)} for _ in range(8)])
    assert sent_bytes(world) == [port.sent_bytes for port in ports(rounds, 8)]


def varies(name: str) -> bool:
    """Whether payloads may be shorter than their capacity; THC's integers may need fewer bits."""
    return name == "thc" or facts(COMPRESSORS[name]).exact_size is False


def test_a_broadcast_costs_the_leader_a_logarithm() -> None:
    busiest = dict(zip(BUSIEST_OF, facts(COMPRESSORS["scalecom"]).busiest, strict=True))
    assert busiest[4] > 50 and busiest[16] > 40 and busiest[64] > 30  # noqa: PT018


def test_an_all_gather_pays_for_ratios_above_half_the_ranks_only() -> None:
    topk = facts(COMPRESSORS["topk"])
    for ranks, ratio in zip(BUSIEST_OF, topk.busiest, strict=True):
        assert ratio == pytest.approx(topk.ratio * 2 / ranks, rel=0.01)


@pytest.mark.parametrize(("ranks", "pays"), [(4, True), (15, True), (16, False), (64, False)])
def test_ef21_with_int4_is_slower_than_dense_from_16_ranks_on(ranks: int, pays: bool) -> None:
    config = load_config({"compressor": "int4", "feedback": {"kind": "ef21"}})
    large = ParameterInfo(0, "weight", (1000, 1000))
    (ratio,) = ratios(config, [large], assign(config, [large]), ranks).values()
    assert (ratio > 1) is pays


def test_a_ring_sends_nearly_twice_the_gradient() -> None:
    assert dense_ring_bytes(100, 4) == 600
