"""How a codec's payloads are combined: the choice, refusals, shards, and the exact mean."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
import torch

from compressa.aggregators import (
    AllReduce,
    State,
    StepContext,
    World,
    build_aggregator,
    choose_exchange,
)
from compressa.aggregators.momentum import Momentum
from compressa.aggregators.scatter import Scattered
from compressa.aggregators.shards import ShardSpans, cut_shards
from compressa.codecs import (
    DGC,
    Bf16,
    Codec,
    Entropy,
    Fp16,
    Int4,
    Int8,
    NoCompression,
    OneBit,
    OneBitSGD,
    RandomK,
    Threshold,
    TopK,
)
from compressa.collectives import Exchange
from compressa.collectives.all_gather import ALL_GATHERS, all_gather
from compressa.compressor import Compressor
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import EF21, ErrorFeedback, FeedbackRule, MomentumCorrection


@pytest.mark.parametrize(
    ("codec", "size", "due"),
    [
        (RandomK(), 2, "all_reduce"),
        (RandomK(), 8, "all_reduce"),
        (Int8(), 2, "all_gather"),
        (Int8(), 3, "scatter_reduce"),
        (OneBit(), 16, "scatter_reduce"),
        (Bf16(), 2, "all_gather"),
        (Fp16(), 4, "scatter_reduce"),
        (TopK(), 2, "all_gather"),
        (TopK(), 64, "all_gather"),
    ],
)
def test_auto_chooses_by_codec_and_size_only(codec: Codec, size: int, due: str) -> None:
    assert choose_exchange(codec, size) == due
    assert choose_exchange(codec, size, "all_gather") == "all_gather"


MOMENTUM = FeedbackRule(momentum=Momentum(factor=0.9))
REFUSED: list[tuple[str, str, list[Compressor]]] = [
    ("all_reduce", "cannot be summed", [Int8(), Int4(), OneBit(), TopK()]),
    (
        "all_reduce",
        "in no rank's residual",  # where a sum in 16 bits would lose mass
        [ErrorFeedback(codec=Bf16()), ErrorFeedback(codec=Fp16())],
    ),
    ("all_reduce", "ef21: every rank needs every change", [EF21(codec=TopK())]),
    ("scatter_reduce", "ef21: every rank needs every change", [EF21(codec=TopK())]),
    ("scatter_reduce", "scatter_reduce", [TopK(), RandomK()]),
    (
        "scatter_reduce",
        "momentum: .*own shard whole",
        [MomentumCorrection(compressor=ErrorFeedback(codec=Int8()))],
    ),
    (
        "per_hop",
        r"span a whole parameter.*per_hop.*use \"auto\"",
        [TopK(), RandomK(), OneBitSGD()],
    ),
    ("per_hop", "length of its payloads is not known", [Entropy(codec=Int8(), level=1)]),
    (
        "per_hop",
        "no rank knows what became of its own gradient",
        [ErrorFeedback(codec=Int8(), rule=MOMENTUM)],
    ),
]


@pytest.mark.parametrize(
    ("exchange", "said", "compressor"), [(*row[:2], made) for row in REFUSED for made in row[2]]
)
def test_what_does_not_fit_an_exchange_is_refused(
    exchange: str, said: str, compressor: Compressor
) -> None:
    with pytest.raises(ConfigError, match=said):
        LoopbackWorld(2, MODEL, compressor, exchange=exchange)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("exchange", ["all_reduce", "all_gather", "scatter_reduce"])
def test_dense_mean_is_the_sum_in_rank_order(size: int, exchange: str) -> None:
    gradients = model_gradients(size, 0)
    world = LoopbackWorld(size, MODEL, NoCompression(), exchange=exchange)
    mean = world.step(gradients)[-1]
    for name, tensor in mean.items():
        due = gradients[0][name] / size
        for own in gradients[1:]:
            due = due + own[name] / size
        assert torch.equal(tensor, due), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dense_keeps_the_gradients_dtype(dtype: torch.dtype) -> None:
    parameters = [ParameterInfo(0, "w", (5, 7), dtype)]
    gradients = [{"w": torch.full((5, 7), float(rank + 1), dtype=dtype)} for rank in range(3)]
    mean = LoopbackWorld(3, parameters, NoCompression()).step(gradients)[1]["w"]
    assert mean.dtype is dtype
    assert torch.allclose(mean.double(), torch.full((5, 7), 2.0).double(), atol=0.02)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("block", [1, 16, 128])
def test_shards_are_a_partition_on_block_boundaries(size: int, block: int) -> None:
    shapes = [(300,), (7,), (1,), (64,), (1000,)]
    infos = [ParameterInfo(i, f"p{i}", shape) for i, shape in enumerate(shapes)]
    # The first segment is only the later part of its parameter.
    segments = (Segment(infos[0], 128, 300), *(Segment(p, 0, p.elems) for p in infos[1:]))
    layout = Layout(0, segments)
    shards = cut_shards(layout, size, block)
    assert len(shards) == size
    seen = [scope.segment for shard in shards for scope in shard]
    for segment in segments:
        parts = [part for part in seen if part.parameter is segment.parameter]
        edges = [(part.start, part.stop) for part in parts]
        assert edges[0][0] == segment.start
        assert edges[-1][1] == segment.stop
        for (_, stop), (start, _) in pairwise(edges):
            assert start == stop
            assert (start - segment.start) % block == 0


@pytest.mark.parametrize("size", [1, 3, 8])
def test_shards_are_spans_of_their_own_though_they_are_empty(size: int) -> None:
    layout = Layout(0, (Segment(ParameterInfo(0, "w", (40,)), 0, 40),))
    cut = cut_shards(layout, size, 16)
    shards = ShardSpans(cut, [100 + owner for owner in range(size)])
    assert len(set(shards.spans)) == size
    assert [span.elems - 1 for span in shards.spans] == [
        sum(scope.segment.elems for scope in scopes) for scopes in cut
    ]
    assert [shards.sizes_bytes[span] for span in shards.spans] == [100 + n for n in range(size)]
    assert (shards.spans[0].start, shards.spans[-1].stop) == shards.span


def test_shards_are_cut_into_no_other_number_of_parts() -> None:
    layout = Layout(0, (Segment(ParameterInfo(0, "w", (4000,)), 0, 4000),))
    scattered = Scattered(Int8(), layout, World(0, 6, 0, "auto", State()), feedback=None)
    (request,) = islice(scattered.run([torch.ones(4000)], StepContext(0)), 1)
    assert isinstance(request, AllReduce)
    values = request.values
    assert len(values.cut(values.span, 6)) == 6
    for span, parts in ((values.span, 4), (values.cut(values.span, 6)[0], 6)):
        with pytest.raises(ValueError, match="a sum over 6 ranks was cut"):
            values.cut(span, parts)


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("compressor", [Int8(), TopK(), EF21(codec=TopK()), Threshold(), DGC()])
@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_payloads_that_lie_side_by_side_are_said_to_where_all_ranks_say_so(
    algorithm: str, compressor: Compressor, rank: int
) -> None:
    layout = Layout(0, (Segment(ParameterInfo(0, "w", (1000,)), 0, 1000),))
    aggregator = build_aggregator(compressor, layout, World(rank, 3, 0, "all_gather", State()))
    (round_,) = aggregator.rounds
    request = next(aggregator.run([torch.randn(1000)], StepContext(0)))
    program = all_gather(ALL_GATHERS[algorithm], **vars(request), rank=rank, exact=round_.exact)
    exchange = next(program)
    assert isinstance(exchange, Exchange)
    varying = isinstance(compressor, Threshold | DGC)
    assert (exchange.gathered is None) == (varying or algorithm == "ring")
    if exchange.gathered is not None:
        parts = exchange.gathered.chunk(3)
        assert len({part.numel() for part in parts}) == 1
        assert {data.data_ptr() for data in exchange.outgoing.values()} == {parts[rank].data_ptr()}
        for peer, room in exchange.incoming.items():
            assert room.data_ptr() == parts[peer].data_ptr()
            assert room.numel() <= parts[peer].numel()
