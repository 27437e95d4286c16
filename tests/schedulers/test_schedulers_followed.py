"""Ranks that follow a plan on the virtual clock, whatever is ready when, and whoever is late."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from compressa.schedulers import POLICIES, Conditions, Link, Name, Plan, Transfer, launches
from hypothesis import example, given
from hypothesis import strategies as st
from ordered_loopback import OrderedLoopback

from compressa.collectives.base import Exchange, Program
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback
from compressa.transports.loopback_port import Port

BANDWIDTH, CHUNK_BYTES, CREDIT_BYTES = 1e6, 1000, 2500
STRAGGLER = 10.0


@dataclass(frozen=True)
class Case:
    """Units of several stages each, and when they are ready on each rank."""

    ranks: int
    policy: str
    transfers: tuple[Transfer, ...]
    ready_s: tuple[tuple[float, ...], ...]

    @property
    def units(self) -> dict[int, list[Transfer]]:
        found: dict[int, list[Transfer]] = {}
        for transfer in self.transfers:
            found.setdefault(transfer.unit, []).append(transfer)
        return found

    @property
    def conditions(self) -> Conditions:
        return Conditions(Link(BANDWIDTH, 1e-4, 1e-4), compute_s=0.1)

    @property
    def plan(self) -> Plan:
        return POLICIES[self.policy](self.transfers, self.conditions)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ranks, units = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    times = st.floats(0, 0.05)
    transfers: list[Transfer] = []
    for unit in range(units):
        ready_s, need_s = draw(times), 0.05 + draw(times)
        sizes = draw(st.lists(st.integers(1, 9000), min_size=1, max_size=3))
        transfers += [Transfer(unit, i, n, ready_s, need_s) for i, n in enumerate(sizes)]
    late = draw(st.lists(st.sampled_from([1.0, STRAGGLER]), min_size=ranks, max_size=ranks))
    ready = [draw(st.lists(times, min_size=units, max_size=units)) for _ in range(ranks)]
    by_rank = tuple(tuple(f * t for t in row) for f, row in zip(late, ready, strict=True))
    return Case(ranks, draw(st.sampled_from([*POLICIES])), tuple(transfers), by_rank)


@dataclass
class Run:
    """What happened."""

    finished: Counter[tuple[int, int]] = field(default_factory=Counter)
    exchanged: Counter[tuple[int, Name]] = field(default_factory=Counter)


def follow(case: Case, loopback: Loopback, steps: int = 1) -> Run:
    """Have every rank follow the plan, and start its units when they are ready."""
    run, plan, clock = Run(), case.plan, loopback.clock
    ordered: Any = ()
    if isinstance(loopback, OrderedLoopback):
        ordered = launches(case.transfers, plan, case.conditions)
    for rank, transport in enumerate(loopback.transports):
        post = partial(clock.at, 0.0)
        driver = Driver(transport, no_compute, post, lambda: clock.now_s, math.inf)
        driver.follow(plan, ordered)
        driver.observe(
            lambda task, *_, rank=rank: run.exchanged.update([(rank, (task.unit, task.stage))])
        )
        for unit, stages in case.units.items():
            program = exchanges(rank, case.ranks, stages)

            def finished(error: BaseException | None, rank: int = rank, unit: int = unit) -> None:
                assert error is None
                run.finished[rank, unit] += 1

            task = Task(unit, f"unit {unit}", 0, program, finished)
            clock.at(case.ready_s[rank][unit], partial(driver.start, task))
    clock.run()
    return run


def no_compute(*_: Any) -> None:
    raise AssertionError("these programs compute nothing")


def exchanges(rank: int, ranks: int, stages: list[Transfer]) -> Program[None]:
    """Each stage is a message to every other rank."""
    for stage in stages:
        size = max(1, stage.wire_bytes // (ranks - 1))
        peers = [peer for peer in range(ranks) if peer != rank]
        sent = torch.full((size,), stage.unit, dtype=torch.uint8)
        buffers = {peer: torch.empty_like(sent) for peer in peers}
        received = yield Exchange(dict.fromkeys(peers, sent), buffers)
        assert all(bool((received[peer] == stage.unit).all()) for peer in peers)


def everything_once(case: Case, run: Run) -> None:
    """Nothing is stuck, left out or sent twice."""
    assert run.finished == Counter((r, u) for r in range(case.ranks) for u in case.units)
    names = [(transfer.unit, transfer.stage) for transfer in case.transfers]
    assert run.exchanged == Counter((r, name) for r in range(case.ranks) for name in names)


@given(cases())
def test_on_tagged_transports_whatever_is_ready_goes_and_nothing_is_stuck(case: Case) -> None:
    loopback = Loopback(
        case.ranks,
        latency_s=1e-4,
        bandwidth_bytes_per_s=BANDWIDTH,
        chunk_bytes=CHUNK_BYTES,
        credit_bytes=CREDIT_BYTES,
    )
    everything_once(case, follow(case, loopback))


@given(cases())
def test_on_ordered_transports_all_ranks_launch_in_one_order(case: Case) -> None:
    loopback = OrderedLoopback(case.ranks)
    everything_once(case, follow(case, loopback))
    orders = [[(key.unit, key.stage) for key in launched] for launched in loopback.launched]
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == sorted((t.unit, t.stage) for t in case.transfers)


MESSAGES = st.tuples(st.floats(0, 0.02), st.integers(0, 9), st.integers(1, 8000))


@given(st.lists(MESSAGES, min_size=1, max_size=20))
@example([(0.0, 1, 1), (0.0, 1, 452), (0.0, 1, 2000), (0.0, 0, 1)])
def test_what_leaves_is_the_most_urgent_and_waits_for_one_credit_at_most(
    messages: list[tuple[float, int, int]],
) -> None:
    loopback = Loopback(2, bandwidth_bytes_per_s=BANDWIDTH)
    clock, free_s = loopback.clock, 0.0
    waiting: dict[int, int] = {}
    began_s: dict[int, float] = {}
    frames: list[tuple[int, float, float]] = []  # of which message, when handed over, when gone
    done: list[int] = []

    def urgency(number: int) -> tuple[int, float, int]:
        came_s, priority, _ = messages[number]
        return priority, came_s, number

    def carry(peer: int, size: int, on_sent: Any, arrived: Any) -> None:
        nonlocal free_s
        number, data = min(waiting, key=urgency), size - FRAME_HEADER_BYTES
        assert data == min(waiting[number], CHUNK_BYTES)
        waiting[number] -= data
        if not waiting[number]:
            del waiting[number]
        leaves_s = max(clock.now_s, free_s)
        began_s.setdefault(number, leaves_s)
        free_s = leaves_s + size / BANDWIDTH
        frames.append((number, clock.now_s, free_s))
        loopback.carry(0, peer, size, on_sent, arrived)

    port = Port(carry, CHUNK_BYTES, CREDIT_BYTES)

    def send(number: int) -> None:
        _, priority, size = messages[number]
        waiting[number] = size
        port.send(1, size, (0, priority), partial(done.append, number), lambda: None)

    for number in sorted(range(len(messages)), key=lambda n: (messages[n][0], n)):
        clock.at(messages[number][0], partial(send, number))
    clock.run()
    assert sorted(done) == list(range(len(messages)))
    assert not waiting
    for number, (came_s, priority, _) in enumerate(messages):
        # Those that are as urgent and came before, or are more urgent, may go first.
        rivals = [
            n
            for n, (time_s, p, _) in enumerate(messages)
            if n != number and p <= priority and time_s <= began_s[number]
        ]
        if not rivals:
            # The credit is of data; each frame that is on its way, however short, has a header.
            ahead = sum(n != number and h_s <= came_s < gone_s for n, h_s, gone_s in frames)
            most_s = (CREDIT_BYTES + ahead * FRAME_HEADER_BYTES) / BANDWIDTH
            assert began_s[number] - came_s <= most_s * (1 + 1e-9) + 1e-12
