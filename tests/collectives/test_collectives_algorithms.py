"""Every all-reduce algorithm on a virtual clock: the sum, the same bits everywhere, the cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectives_direct import noted, run_all

from compressa.collectives import Compute, Exchange, Program
from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.algorithms import ALGORITHMS, Algorithm, AllReduce, segmented
from compressa.collectives.cost import Link, Stage
from compressa.collectives.dense import DenseValues
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.config import config_schema
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback

CPU = torch.device("cpu")
IN_RANK_ORDER = ["all_to_all", "master_worker", "round_robin"]
OF_FEW_HOPS = ["halving_doubling", "recursive_doubling", "tree"]


def sum_with(
    loopback: Loopback, all_reduce: AllReduce, values: Sequence[Accumulator], elems: int
) -> None:
    """Sum what accumulators hold, in place."""

    def program(rank: int) -> Program[None]:
        group = RankGroup.everyone(rank, loopback.size)
        return all_reduce(values[rank], Span(0, elems), group, Scratch(CPU))

    assert run_all(loopback, program) == [None] * loopback.size


def sum_all(loopback: Loopback, all_reduce: AllReduce, values: list[torch.Tensor]) -> None:
    """Sum in place."""
    sum_with(loopback, all_reduce, [DenseValues(value) for value in values], values[0].numel())


def same_bits(values: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(v.view(torch.uint8), values[0].view(torch.uint8)) for v in values)


def due_s(stages: Sequence[Stage], link: Link) -> float:
    """What stages take where each message has a header, too."""
    headers_s = sum(stage.messages for stage in stages) * FRAME_HEADER_BYTES * link.byte_s
    return link.time_s(stages) + headers_s


def time_s(algorithm: Algorithm, size: int, link: Link, elems: int = 8 * 1024) -> float:
    """How long a sum of int32 takes on the virtual clock."""
    values = [torch.full((elems,), rank, dtype=torch.int32) for rank in range(size)]
    loopback = Loopback(size, message_s=link.message_s, bandwidth_bytes_per_s=1 / link.byte_s)
    sum_all(loopback, algorithm.all_reduce, values)
    assert all((value == size * (size - 1) // 2).all() for value in values)
    return loopback.clock.now_s


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=30)
@given(
    size=st.integers(1, 17),
    elems=st.sampled_from([0, 1, 15, 16, 17, 1000]),
    segments=st.sampled_from([1, 3]),
    seed=st.integers(0, 999),
)
def test_integers_are_summed_exactly(
    name: str, size: int, elems: int, segments: int, seed: int
) -> None:
    random = generator(seed)
    values = [torch.randint(-1000, 1000, (elems,), generator=random) for _ in range(size)]
    due = torch.stack(values).sum(0)
    sum_all(Loopback(size), segmented(ALGORITHMS[name], segments), values)
    assert all(torch.equal(value, due) for value in values)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_rank_ends_with_the_same_bits(name: str, dtype: torch.dtype) -> None:
    for size in [*range(1, 10), 31]:
        random = generator(size)
        values = [torch.randn(333, generator=random).to(dtype) for _ in range(size)]
        exact = torch.stack(values).double().sum(0)
        scale = torch.stack(values).double().abs().sum(0)
        sum_all(Loopback(size), ALGORITHMS[name].all_reduce, values)
        assert same_bits(values)
        ulp = torch.finfo(dtype).eps
        assert ((values[0].double() - exact).abs() <= size * ulp * scale).all()


@pytest.mark.parametrize("name", IN_RANK_ORDER)
@pytest.mark.parametrize("elems", [0, 1, 17, 777])
def test_those_that_can_sum_in_the_order_of_ranks(name: str, elems: int) -> None:
    for size in (1, 2, 7, 9):
        values = [torch.randn(elems, generator=generator(rank)) for rank in range(size)]
        due = values[0].clone()
        for value in values[1:]:
            due += value
        sum_all(Loopback(size), ALGORITHMS[name].all_reduce, values)
        assert same_bits([due, *values])


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, size) for name in ALGORITHMS for size in (1, 2, 3, 6, 7, 8, 32)),
        *((name, size) for name in OF_FEW_HOPS for size in (250, 256)),
    ],
)
def test_it_takes_as_long_as_its_stages_say(name: str, size: int) -> None:
    link, elems = Link(1e-3, 1e-6), 1024 if size > 32 else 8 * 1024
    due = due_s(ALGORITHMS[name].stages(4 * elems, size), link)
    assert time_s(ALGORITHMS[name], size, link, elems) == pytest.approx(due, rel=0.02)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rank_asks_for_as_many_exchanges_as_there_are_stages(name: str) -> None:
    for size in [*range(1, 10), 13]:
        assert exchanges(ALGORITHMS[name], size) == {len(ALGORITHMS[name].stages(400, size))}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 13, 16])
def test_a_stage_says_what_share_of_the_ranks_is_at_work(name: str, size: int) -> None:
    elems = 5040 * 16
    stages = ALGORITHMS[name].stages(4 * elems, size)
    hops = zip(*asked_for(ALGORITHMS[name], size, elems), strict=True)
    for stage, hop in zip(stages, hops, strict=True):
        sent, received = (
            [sum(buffer.nbytes for buffer in buffers.values()) for buffers in way]
            for way in zip(*((each.outgoing, each.incoming) for each in hop), strict=True)
        )
        share = sum(sent) / (size * max(*sent, *received))
        assert stage.share == pytest.approx(share, rel=0.01)


def exchanges(algorithm: Algorithm, size: int) -> set[int]:
    """The numbers of exchanges that ranks ask for in a sum of 100 elements."""
    return set(map(len, asked_for(algorithm, size, 100)))


def asked_for(algorithm: Algorithm, size: int, elems: int) -> list[list[Exchange]]:
    """By rank, the exchanges that it asks for in a sum."""
    asked: list[list[Any]] = [[] for _ in range(size)]

    def counted(
        values: Accumulator, span: Span, group: RankGroup, scratch: Scratch
    ) -> Program[None]:
        return noted(algorithm.all_reduce(values, span, group, scratch), asked[group.index].append)

    sum_all(Loopback(size), counted, [torch.zeros(elems) for _ in range(size)])
    return [[each for each in own if isinstance(each, Exchange)] for own in asked]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_plain_values_are_computed_with_only_to_be_added(name: str) -> None:
    """What is sent lies where the values are: nobody waits for a thread that makes it."""
    values, asked = [torch.ones(64) for _ in range(4)], list[Any]()

    def program(rank: int) -> Program[None]:
        dense, group = DenseValues(values[rank]), RankGroup.everyone(rank, 4)
        all_reduce = ALGORITHMS[name].all_reduce(dense, Span(0, 64), group, Scratch(CPU))
        return noted(all_reduce, asked.append)

    assert run_all(Loopback(4), program) == [None] * 4
    assert {operation.stage for operation in asked if isinstance(operation, Compute)} == {"decode"}


def test_a_configuration_can_name_each() -> None:
    schema = config_schema()["$defs"]["Exchange"]["properties"]["algorithm"]
    assert schema["enum"] == ["auto", "backend", "hierarchical", *ALGORITHMS]
