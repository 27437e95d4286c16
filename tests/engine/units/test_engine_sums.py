"""What rounds become on a transport: the right sum, in the exchanges that the plan counts on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from test_collectives_direct import run_all

from compressa.aggregators import AllReduce, Round, Verb
from compressa.collectives import Exchange, Program
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.choice import Costs
from compressa.collectives.cost import Link
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.engine.units.sums import Sums
from compressa.errors import ConfigError
from compressa.transports.loopback import Loopback

CPU = torch.device("cpu")
ELEMS = 3000
HOSTS = {4: "aabb", 5: "aaabb", 6: "aabbcc"}


def a_round(elems: int = ELEMS, **options: Any) -> Round:
    return Round(Verb.ALL_REDUCE, torch.int64, 8 * elems, **options)


class Counted:
    """Notes the exchanges of each rank's program, and the bytes it sends in each."""

    def __init__(self, size: int) -> None:
        self.sent_bytes: list[list[int]] = [[] for _ in range(size)]

    def program(self, rank: int, program: Program[Any]) -> Program[None]:
        answer: Any = None
        while True:
            try:
                operation = program.send(answer)
            except StopIteration:
                return
            if isinstance(operation, Exchange):
                self.sent_bytes[rank].append(operation.outgoing_bytes)
            answer = yield operation


def sum_up(
    sums: Callable[[Any], Sums], size: int, round_: Round, elems: int = ELEMS
) -> tuple[list[torch.Tensor], Counted]:
    """Sum the rank's number over all ranks, plus one."""
    values = [torch.full((elems,), rank + 1) for rank in range(size)]
    loopback, counted = Loopback(size), Counted(size)

    def program(rank: int) -> Program[None]:
        request = AllReduce(DenseValues(values[rank]), Scratch(CPU))
        return counted.program(rank, sums(loopback.transports[rank]).run(request, round_))

    assert run_all(loopback, program) == [None] * size
    return values, counted


@pytest.mark.parametrize("algorithm", ["auto", "hierarchical", *ALGORITHMS])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 6])
def test_a_sum_takes_the_exchanges_that_are_planned(algorithm: str, size: int) -> None:
    hosts = HOSTS.get(size, "")
    values, counted = sum_up(lambda own: Sums(own, algorithm, hosts), size, a_round())
    due = size * (size + 1) // 2
    assert all(bool((value == due).all()) for value in values)
    planned = Sums(Loopback(size).transports[0], algorithm, hosts).transfers(7, [a_round()])
    assert [transfer.stage for transfer in planned] == list(range(len(planned)))
    for sent in counted.sent_bytes:
        assert len(sent) == len(planned)
        if algorithm != "hierarchical" or size != 5:  # hosts of unequal size are not in step
            slack = 8 * 16 * size  # cuts fall on whole vectors
            most = [transfer.wire_bytes + slack for transfer in planned]
            assert all(own <= due for own, due in zip(sent, most, strict=True)), (sent, most)


def test_the_algorithm_of_a_round_comes_before_the_configured_one() -> None:
    fixed = a_round(algorithm="tree")
    values, counted = sum_up(lambda own: Sums(own, "all_to_all"), 6, fixed)
    assert all(bool((value == 21).all()) for value in values)
    assert {len(sent) for sent in counted.sent_bytes} == {len(ALGORITHMS["tree"].stages(8, 6))}


@pytest.mark.parametrize(
    ("size", "kib", "due"),
    [
        (2, 1, "halving_doubling"),
        (8, 9999, "halving_doubling"),
        (6, 16, "halving_doubling"),
        (6, 17, "ring"),
    ],
)
def test_auto_chooses_by_size_and_ranks(size: int, kib: int, due: str) -> None:
    plain = Round(Verb.ALL_REDUCE, torch.uint8, kib << 10)
    (transport, *_) = Loopback(size).transports
    planned = Sums(transport).transfers(0, [plain])
    assert planned == Sums(transport, due).transfers(0, [plain])


def test_only_a_round_that_names_no_algorithm_is_cut() -> None:
    elems = 1 << 18  # 2 MiB, so that a part has several segments
    (transport, *_) = Loopback(2).transports
    whole, cut = (a_round(elems, algorithm=own) for own in ("ring", None))
    counts = [len(Sums(transport, "ring").transfers(0, [own])) for own in (whole, cut)]
    assert counts == [2, 8]
    for round_, count in zip((whole, cut), counts, strict=True):
        seen: list[Any] = []

        def sums(own: Any, seen: list[Any] = seen) -> Sums:
            seen.append(own)
            return Sums(own, "ring")

        values, _ = sum_up(sums, 2, round_, elems)
        assert all(bool((value == 3).all()) for value in values)
        assert [own.traffic.messages for own in seen] == [count, count]


def test_what_stays_within_a_host_is_counted_apart() -> None:
    (transport, *_) = Loopback(4).transports
    sums = Sums(transport, "hierarchical", "aabb")
    (alike, apart) = (
        [
            own.wire_bytes
            for own in sums.transfers(0, [Round(Verb.ALL_REDUCE, torch.uint8, 400, **more)])
        ]
        for more in ({}, {"inside_bytes": 1600})
    )
    assert alike == [200, 100, 100, 200]
    assert apart == [800, 100, 100, 800]


def test_no_backend_sums_what_a_codec_makes() -> None:
    (transport, *_) = Loopback(2).transports
    with pytest.raises(ConfigError, match="no backend"):
        Sums(transport, "backend").transfers(0, [a_round()])


def test_a_sum_is_launched_in_any_order() -> None:
    (transport, *_) = Loopback(2).transports
    assert Sums(transport).ordered([a_round(1 << 20)]) == []


def test_auto_leaves_no_sum_to_the_backend_that_others_shall_overtake() -> None:
    plain = Round(Verb.ALL_REDUCE, torch.float32, 64 << 20, dense=True)
    transport = mock.Mock(size=4, sums=True, lowers=True)
    assert Sums(transport).plan(plain).name == "halving_doubling"
    transport.lowers = False
    assert Sums(transport).plan(plain).name == "backend"
    assert Sums(transport, overtaking=True).plan(plain).name == "round_robin"
    assert Sums(transport, "backend", overtaking=True).plan(plain).name == "backend"


def test_where_others_compute_a_sum_has_few_hops_if_its_bytes_are_as_many() -> None:
    plain = Round(Verb.ALL_REDUCE, torch.float32, 256 << 10, dense=True)
    costs = Costs(Link(message_s=1e-5, byte_s=1e-7, reduce_s=1e-9))
    for size, alone, beside in ((2, 2, 1), (4, 4, 4)):
        transport = Loopback(size).transports[0]
        hops = [
            len(Sums(transport, costs=costs, overtaking=overtaking).transfers(0, [plain]))
            for overtaking in (False, True)
        ]
        assert hops == [alone, beside]
