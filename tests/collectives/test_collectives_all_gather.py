"""Every all-gather on a virtual clock: everybody's bytes, whatever carries them, at its cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_collectives_direct import noted, run_all

from compressa.aggregators import AllGather, Round, Verb
from compressa.collectives import Exchange, Program
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.all_gather import ALL_GATHERS, DIRECT, all_gather
from compressa.collectives.choice import Costs, Point
from compressa.collectives.cost import Link
from compressa.collectives.scratch import Scratch
from compressa.engine.units.sums import Sums
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback

CPU = torch.device("cpu")
OF_FEW_HOPS = ["recursive_doubling", "bruck"]


class Gathering:
    """What each rank gives, what it gets, and the exchanges that it asks for."""

    def __init__(self, size: int, capacity: int, *, exact: bool = True) -> None:
        self.size = size
        self.capacity = capacity
        self.exact = exact
        lengths = [capacity if exact else 1 + rank % capacity for rank in range(size)]
        self.payloads = [
            torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator(rank))
            for rank, n in enumerate(lengths)
        ]
        self.results: list[dict[int, torch.Tensor]] = [{} for _ in range(size)]
        self.exchanges: list[list[Exchange]] = [[] for _ in range(size)]

    def program(self, name: str, rank: int) -> Program[None]:
        """One rank's; notes what it asks for."""
        incoming = {
            peer: torch.empty(self.capacity, dtype=torch.uint8)
            for peer in range(self.size)
            if peer != rank
        }
        own = self.payloads[rank], incoming, rank, Scratch(CPU)
        program = all_gather(ALL_GATHERS[name], *own, exact=self.exact)
        self.results[rank] = yield from noted(program, self.exchanges[rank].append)

    def run(self, name: str, loopback: Loopback | None = None) -> list[dict[int, torch.Tensor]]:
        """Let all ranks gather; return what each one has."""
        ends = run_all(loopback or Loopback(self.size), lambda rank: self.program(name, rank))
        assert ends == [None] * self.size
        return self.results


@pytest.mark.parametrize("name", ALL_GATHERS)
@pytest.mark.parametrize("size", [*range(1, 10), 16, 31])
def test_every_rank_has_every_rank_s_bytes(name: str, size: int) -> None:
    for capacity in (0, 1, 40):
        gathering = Gathering(size, capacity)
        for own in gathering.run(name):
            assert sorted(own) == list(range(size))
            assert all(torch.equal(own[r], payload) for r, payload in enumerate(gathering.payloads))


def alone(name: str, size: int) -> bool:
    return not ALL_GATHERS[name].joins(size)


@pytest.mark.parametrize(
    ("name", "size"), [(name, n) for name in ALL_GATHERS for n in range(1, 10) if alone(name, n)]
)
def test_payloads_that_travel_alone_may_be_of_any_length(name: str, size: int) -> None:
    gathering = Gathering(size, 5, exact=False)
    for own in gathering.run(name):
        assert all(torch.equal(own[r], payload) for r, payload in enumerate(gathering.payloads))


@pytest.mark.parametrize("name", ALL_GATHERS)
@pytest.mark.parametrize("size", [*range(1, 10), 13])
def test_it_takes_the_exchanges_and_the_bytes_that_its_stages_say(name: str, size: int) -> None:
    gathering = Gathering(size, 40)
    gathering.run(name)
    stages = ALL_GATHERS[name].stages(40, size)
    for hop, stage in enumerate(stages):
        sent = [own[hop].outgoing_bytes for own in gathering.exchanges]
        heard = [sum(x.numel() for x in own[hop].incoming.values()) for own in gathering.exchanges]
        assert max(*sent, *heard, 0) == stage.port_bytes
        assert max(len(own[hop].outgoing) for own in gathering.exchanges) == stage.messages
    assert {len(own) for own in gathering.exchanges} == {len(stages)}


@pytest.mark.parametrize("name", ALL_GATHERS)
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 32])
def test_it_takes_as_long_as_its_stages_say(name: str, size: int) -> None:
    link, capacity = Link(1e-3, 1e-6), 8192
    loopback = Loopback(size, message_s=link.message_s, bandwidth_bytes_per_s=1 / link.byte_s)
    Gathering(size, capacity).run(name, loopback)
    stages = ALL_GATHERS[name].stages(capacity, size)
    headers_s = sum(stage.messages for stage in stages) * FRAME_HEADER_BYTES * link.byte_s
    assert loopback.clock.now_s == pytest.approx(link.time_s(stages) + headers_s, rel=0.02)


@pytest.mark.parametrize("size", range(4, 10))
def test_many_payloads_travel_alone_directly_and_by_ring(size: int) -> None:
    assert alone("direct", size)
    assert alone("ring", size)
    assert not any(alone(name, size) for name in OF_FEW_HOPS)


@pytest.mark.parametrize("name", OF_FEW_HOPS)
def test_those_that_join_take_the_fewest_hops_of_powers_of_two(name: str) -> None:
    assert [len(ALL_GATHERS[name].stages(1, 1 << lg)) for lg in range(7)] == list(range(7))


def test_bruck_takes_the_fewest_hops_of_any_number_of_ranks() -> None:
    of_13 = {"direct": 1, "ring": 12, "recursive_doubling": 5, "bruck": 4}
    assert {name: len(ALL_GATHERS[name].stages(1, 13)) for name in of_13} == of_13


def test_each_is_alike_a_sum_that_there_is() -> None:
    assert {row.alike for row in ALL_GATHERS.values()} <= set(ALGORITHMS)


class TestChoice:
    """By which all-gather payloads are predicted to be brought around the soonest."""

    COSTLY = Costs(Link(message_s=1e-3, byte_s=1e-9, reduce_s=1e-9))

    @staticmethod
    def carried(size: int, round_: Round, **options: Any) -> str:
        return Sums(Loopback(size).transports[0], **options).plan(round_).name

    def test_without_figures_of_the_link_they_go_directly(self) -> None:
        for size in range(1, 10):
            assert self.carried(size, Round(Verb.ALL_GATHER, torch.uint8, 100)) == DIRECT

    def test_with_them_few_bytes_take_few_messages_and_many_are_not_copied(self) -> None:
        few, many = (Round(Verb.ALL_GATHER, torch.uint8, n) for n in (1 << 10, 64 << 20))
        for size, doublings in ((8, 3), (9, 4)):
            chosen = ALL_GATHERS[self.carried(size, few, costs=self.COSTLY)]
            assert sum(stage.messages for stage in chosen.stages(1, size)) <= doublings
            assert alone(self.carried(size, many, costs=self.COSTLY), size)
        assert self.carried(2, few, costs=self.COSTLY) == DIRECT

    def test_what_is_chosen_takes_no_longer_than_any_other(self) -> None:
        for size, capacity in ((3, 100), (8, 1 << 16), (13, 1 << 20)):
            best = self.COSTLY.best_gather(capacity, size, exact=True)
            times_s = {name: self.COSTLY.gather_s(name, capacity, size) for name in ALL_GATHERS}
            assert times_s[best] == min(times_s.values())

    def test_payloads_of_unknown_length_are_not_joined(self) -> None:
        unknown = Round(Verb.ALL_GATHER, torch.uint8, 1 << 10, exact=False)
        assert alone(self.carried(9, unknown, costs=self.COSTLY), 9)

    def test_measurements_of_the_sum_that_is_alike_count(self) -> None:
        slow = {row.alike: [Point(1, 50.0)] for row in ALL_GATHERS.values()}
        del slow[ALL_GATHERS[DIRECT].alike]
        costs = Costs(self.COSTLY.link, slow)
        assert costs.best_gather(1 << 10, 8, exact=True) == DIRECT

    def test_where_an_algorithm_is_configured_nothing_is_chosen(self) -> None:
        few = Round(Verb.ALL_GATHER, torch.uint8, 1 << 10)
        assert self.carried(9, few, costs=self.COSTLY, algorithm="ring") == DIRECT


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("costs", [None, TestChoice.COSTLY], ids=["unmeasured", "measured"])
def test_a_round_takes_the_exchanges_that_are_planned(size: int, costs: Costs | None) -> None:
    gathering, loopback = Gathering(size, 48), Loopback(size)
    round_ = Round(Verb.ALL_GATHER, torch.uint8, 48)

    def program(rank: int) -> Program[None]:
        incoming = {p: torch.empty(48, dtype=torch.uint8) for p in range(size) if p != rank}
        request = AllGather(gathering.payloads[rank], incoming, Scratch(CPU))
        running = Sums(loopback.transports[rank], costs=costs).run(request, round_)
        gathering.results[rank] = yield from noted(running, gathering.exchanges[rank].append)

    assert run_all(loopback, program) == [None] * size
    for own in gathering.results:
        assert all(torch.equal(own[r], payload) for r, payload in enumerate(gathering.payloads))
    planned = Sums(loopback.transports[0], costs=costs).transfers(7, [round_])
    assert [transfer.after for transfer in planned] == list(range(-1, len(planned) - 1))
    for asked in gathering.exchanges:
        assert len(asked) == len(planned)
        for exchange, transfer in zip(asked, planned, strict=True):
            assert exchange.outgoing_bytes <= transfer.wire_bytes
