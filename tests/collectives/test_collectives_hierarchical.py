"""Sums over hosts of several ranks: exact, with the same bits everywhere, at the cost of stages."""

from __future__ import annotations

import pytest
import torch
from test_aggregators_encoded_sum import holder
from test_collectives_algorithms import (
    CPU,
    due_s,
    exchanges,
    run_all,
    same_bits,
    sum_all,
    time_s,
)

from compressa.codecs import Int8
from compressa.collectives import Program
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.collectives.cost import Link
from compressa.collectives.dense import DenseValues
from compressa.collectives.hierarchical import Topology, by_host, hierarchical, stages
from compressa.collectives.scratch import Scratch
from compressa.testing.inputs import generator
from compressa.transports.loopback import Loopback

EQUAL = [
    Topology(((0,),)),
    Topology(((0, 1, 2),)),
    Topology(((0,), (1,), (2,))),
    Topology(((0, 1, 2, 3), (4, 5, 6, 7))),
    Topology(((5, 0), (1, 4), (2, 3))),
]
UNEQUAL = [Topology(((0, 1, 2), (3,))), Topology(((6,), (1, 2, 3, 4, 5), (0, 7)))]


def ranks(topology: Topology) -> int:
    return len(list(topology))


@pytest.mark.parametrize("across", ALGORITHMS)
def test_integers_are_summed_exactly(across: str) -> None:
    for topology in EQUAL + UNEQUAL:
        algorithm, size = hierarchical(topology, ALGORITHMS[across]), ranks(topology)
        for elems in (0, 1, 17, 1000):
            values = [torch.arange(elems) * rank for rank in range(size)]
            sum_all(Loopback(size), segmented(algorithm, 2), values)
            due = torch.arange(elems) * (size * (size - 1) // 2)
            assert all(torch.equal(value, due) for value in values)
        assert exchanges(algorithm, size) == {len(algorithm.stages(400, size))}


@pytest.mark.parametrize("across", ALGORITHMS)
@pytest.mark.parametrize("inside", ["dense", "encoded"])
def test_every_rank_ends_with_the_same_bits(across: str, inside: str) -> None:
    codec = Int8(rounding="stochastic")
    for topology in EQUAL[1:] + UNEQUAL:
        size = ranks(topology)
        values = [torch.randn(3000, generator=generator(rank)) for rank in range(size)]
        due = torch.stack(values).sum(0)

        def program(
            rank: int, topology: Topology = topology, values: list[torch.Tensor] = values
        ) -> Program[None]:
            outside = holder(codec, values[rank], rank)
            within = DenseValues(values[rank]) if inside == "dense" else outside
            span, algorithm = Span(0, 3000), ALGORITHMS[across]
            return by_host(within, outside, span, rank, Scratch(CPU), topology, algorithm)

        assert run_all(Loopback(size), program) == [None] * size
        assert same_bits(values)
        # The errors of a handful of encodes, of at most a unit of the largest sum each.
        assert (values[0] - due).abs().max() < 4.0 * size * 10 / 127


@pytest.mark.parametrize("across", ALGORITHMS)
@pytest.mark.parametrize("topology", [*EQUAL[1:], *UNEQUAL])
def test_it_takes_as_long_as_its_stages_say(across: str, topology: Topology) -> None:
    link, algorithm = Link(1e-3, 1e-6), ALGORITHMS[across]
    inside, outside = stages(32 * 1024, topology, algorithm)
    took_s = time_s(hierarchical(topology, algorithm), ranks(topology), link)
    share = took_s / (due_s(inside, link) + due_s(outside, link))
    if topology.equal:
        assert share == pytest.approx(1.0, rel=0.02)
    else:
        # Small hosts are ahead. What they send goes while large ones still reduce, and may get in
        # the way of that by one message.
        assert 0.75 < share < 1.15


def test_a_topology_has_every_rank_once() -> None:
    with pytest.raises(ValueError, match="two hosts"):
        Topology(((0, 1), (1, 2)))
    with pytest.raises(ValueError, match="each of them a rank"):
        Topology(((0,), ()))


def test_a_topology_of_other_ranks_is_refused() -> None:
    algorithm = hierarchical(Topology(((0,), (2,))), ALGORITHMS["ring"])
    with pytest.raises(ValueError, match="not that of"):
        sum_all(Loopback(2), algorithm.all_reduce, [torch.zeros(3), torch.zeros(3)])
