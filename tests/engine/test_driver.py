"""The driver: the plan's order on ordered transports, no deadlock, deadlines, errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from compressa.schedulers import Plan
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_loopback import OrderedLoopback

from compressa.codecs import Int8, NoCompression, TopK
from compressa.collectives import Compute, Exchange
from compressa.collectives.base import SideBySide
from compressa.compressor import Compressor
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.errors import PayloadError, PeerLost, StateError, Timeout
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import MODEL, model_gradients
from compressa.transports.base import Done, Key
from compressa.transports.loopback import Loopback, LoopbackTransport

ORDERS = st.permutations(list(range(6)))
EQUALS = [ParameterInfo(i, f"p{i}", (64,)) for i in range(6)]


def equal_gradients(size: int, step: int) -> list[dict[str, torch.Tensor]]:
    values = torch.arange(64).float() + step
    return [{p.name: (rank + 1) * 1e3**p.index * values for p in EQUALS} for rank in range(size)]


@settings(max_examples=15)
@given(orders=st.tuples(ORDERS, ORDERS, ORDERS), policy=st.sampled_from(["fifo", "priority"]))
def test_ordered_operations_follow_the_plan_whatever_is_ready_first(
    orders: tuple[list[int], list[int], list[int]], policy: str
) -> None:
    network = OrderedLoopback(3)
    options: dict[str, Any] = {"unit_bytes": 256, "policy": policy}
    world = LoopbackWorld(3, EQUALS, NoCompression(), loopback=network, **options)
    plain = LoopbackWorld(3, EQUALS, NoCompression(), **options)
    assert world.unit_count == 6
    for step in range(2):
        gradients = equal_gradients(3, step)
        means = world.step(gradients, ready=orders, late_s=(0.0, 0.5, 0.1))
        due = plain.step(gradients)
        assert all(torch.equal(m[n], d[n]) for m, d in zip(means, due, strict=True) for n in d)
    assert network.launched[0] == network.launched[1] == network.launched[2]
    assert len(network.launched[0]) == 2 * 6 * 2


class SilentTransport(LoopbackTransport):
    """Notes what is launched, and answers when it is told to."""

    def __init__(self, *, is_ordered: bool) -> None:
        super().__init__(Loopback(3), 0)
        self.launches: list[tuple[Key, int, Done]] = []
        self._is_ordered = is_ordered

    def ordered(self, operation: Any) -> bool:
        return self._is_ordered

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        self.launches.append((key, priority, done))

    def missing(self, key: Key) -> list[int]:
        return [2]


class EarlyTransport(SilentTransport):
    """Reports what it has launched, and notes what lands."""

    def __init__(self) -> None:
        super().__init__(is_ordered=True)
        self.landed: list[Any] = []

    @property
    def early(self) -> bool:
        return True

    def land(self, operation: Any) -> None:
        self.landed.append(operation)

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        super().exchange(key, exchange, priority, done)
        done({})


class Bench:
    """A driver whose time and computations are in the test's hands."""

    def __init__(
        self, *, is_ordered: bool = False, deadline_s: float = 10.0, early: bool = False
    ) -> None:
        self.transport = EarlyTransport() if early else SilentTransport(is_ordered=is_ordered)
        self.now_s = 0.0
        self.ends: dict[int, BaseException | None] = {}
        self.computing: list[Callable[[Any, BaseException | None], None]] = []
        self.driver = Driver(
            self.transport,
            lambda task, operation, done: self.computing.append(done),
            lambda event: event(),
            lambda: self.now_s,
            deadline_s,
        )

    def ended(self, unit: int, error: BaseException | None) -> None:
        assert unit not in self.ends, "a program ended twice"
        self.ends[unit] = error

    def start(self, unit: int, program: Generator[Any, Any, None], step: int = 0) -> Task:
        task = Task(unit, f"u{unit}", step, program, partial(self.ended, unit))
        self.driver.start(task)
        return task


def exchanges(count: int) -> Generator[Any, Any, None]:
    for _ in range(count):
        yield Exchange({}, {})


def test_tagged_operations_start_at_once_and_carry_their_place() -> None:
    bench = Bench()
    bench.driver.follow(Plan(((1, 0), (0, 0), (1, 1))), [])
    bench.start(0, exchanges(1))
    bench.start(1, exchanges(2))
    assert [(key, priority) for key, priority, _ in bench.transport.launches] == [
        (Key(0, 0, 0), 1),
        (Key(0, 1, 0), 0),
    ]
    bench.transport.launches[1][2]({})
    assert bench.transport.launches[2][:2] == (Key(0, 1, 1), 2)


def test_what_leaves_in_one_message_waits_for_all_of_it() -> None:
    bench = Bench()
    group = ((0, 0), (2, 0))
    bench.driver.follow(Plan(((0, 0), (1, 0), (2, 0), (2, 1)), groups=(group,)), [])
    bench.start(0, exchanges(1))
    bench.start(1, exchanges(1))
    assert [key.unit for key, _, _ in bench.transport.launches] == [1]
    bench.start(2, exchanges(2))
    assert [key.unit for key, _, _ in bench.transport.launches] == [1, 0, 2]
    bench.transport.launches[2][2]({})
    assert bench.transport.launches[3][0] == Key(0, 2, 1)


def test_what_waits_for_others_of_its_message_ends_with_the_rest() -> None:
    bench = Bench()
    bench.driver.follow(Plan(((0, 0), (1, 0)), groups=(((0, 0), (1, 0)),)), [])
    bench.start(0, exchanges(1))
    bench.driver.fail(error := StateError("over"))
    assert bench.ends == {0: error}
    bench.start(1, exchanges(1))
    assert not bench.transport.launches


def test_programs_side_by_side_take_turns_and_no_two_exchanges_share_a_name() -> None:
    def inner() -> Generator[Any, Any, None]:
        yield SideBySide([exchanges(2), exchanges(2)], 2)

    def outer() -> Generator[Any, Any, None]:
        yield Exchange({}, {})
        yield SideBySide([inner(), inner(), inner()], 4)
        yield Exchange({}, {})

    bench = Bench()
    bench.start(0, outer())
    stages: list[list[int]] = []
    while bench.transport.launches:
        launches, bench.transport.launches = bench.transport.launches, []
        stages.append(sorted(key.stage for key, _, _ in launches))
        for _, _, done in launches:
            done({})
    assert stages == [[0], [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [13]]
    assert bench.ends == {0: None}


def test_ordered_operations_wait_for_what_the_plan_puts_first() -> None:
    bench = Bench(is_ordered=True)
    plan = Plan(((1, 0), (0, 0)))
    bench.driver.follow(plan, plan.order)
    bench.start(0, exchanges(1))
    assert bench.transport.launches == []
    bench.start(1, exchanges(1))
    assert [key.unit for key, _, _ in bench.transport.launches] == [1, 0]


@pytest.mark.parametrize("error", [None, PayloadError("bad")])
def test_what_was_reported_early_lands_when_all_before_it_was_computed(
    error: BaseException | None,
) -> None:
    bench = Bench(early=True)
    landed = bench.transport.landed
    both = [Exchange({}, {}), Exchange({}, {})]

    def program(unit: int) -> Generator[Any, Any, None]:
        yield both[unit]
        yield Compute(lambda: None, "decode")
        yield Compute(lambda: None, "decode")

    plan = Plan(((1, 0), (0, 0)))
    bench.driver.follow(plan, plan.order)
    bench.start(0, program(0))
    bench.start(1, program(1))
    assert [key.unit for key, _, _ in bench.transport.launches] == [1, 0]
    assert landed == [both[1]]
    bench.computing.pop()(None, None)
    assert len(landed) == 1, "there is more to compute"
    bench.computing.pop()(None, error)
    assert bench.ends == {1: error}
    assert landed[1] is both[0]
    bench.driver.fail(over := StateError("over"))
    assert bench.ends == {0: over, 1: error}


def test_an_early_transport_sees_to_deadlines_itself() -> None:
    bench = Bench(early=True, deadline_s=10.0)
    with mock.patch.object(EarlyTransport, "exchange", SilentTransport.exchange):
        bench.driver.follow(Plan(((4, 0),)), [(4, 0)])
        bench.start(4, exchanges(1))
    bench.now_s = 11.0
    assert bench.driver.expired(bench.now_s) is None
    assert [wait.seconds for wait in bench.driver.waits()] == [11.0]


def test_deadline_names_whom_this_rank_waits_for() -> None:
    bench = Bench(deadline_s=10.0)
    bench.start(4, exchanges(1), step=9)
    bench.now_s = 10.0
    assert bench.driver.expired(bench.now_s) is None
    bench.now_s = 10.1
    error = bench.driver.expired(bench.now_s)
    assert isinstance(error, Timeout)
    assert error.ranks == (2,)
    for part in ("ranks 2", "stage 0 of unit 4 (u4)", "step 9", "exchange.deadline_s"):
        assert part in str(error)


@given(st.lists(st.tuples(st.sampled_from("sde"), st.floats(0.0, 15.0)), max_size=12))
def test_nothing_expires_before_it_may_be_due(events: list[tuple[str, float]]) -> None:
    bench = Bench(deadline_s=10.0)
    due_s, number = bench.driver.due_s(), 0
    for event, seconds in events:
        bench.now_s += seconds
        late = bench.driver.expired(bench.now_s) is not None
        assert not late or bench.now_s >= due_s
        if late or event == "d":  # looked at
            if late:
                return
            due_s = bench.driver.due_s()
            assert due_s <= bench.now_s + 10.0
        elif event == "s":
            bench.start(number, exchanges(1))
            number += 1
        elif number:
            bench.driver.excuse(seconds)


def test_the_deadline_counts_from_when_a_device_could_have_begun() -> None:
    bench = Bench(deadline_s=10.0)
    with mock.patch.object(SilentTransport, "begun", return_value=False) as begun:
        bench.start(4, exchanges(1))
        bench.start(5, (each for each in [Exchange({}, {}, grace_s=2.0)]))
        for bench.now_s in (9.0, 18.0, 27.0):
            assert bench.driver.expired(bench.now_s) is None
        begun.return_value = True
        bench.now_s = 37.0
        assert bench.driver.expired(bench.now_s) is None
        assert [wait.seconds for wait in bench.driver.waits()] == [10.0, 8.0]
        bench.now_s = 37.1
        error = bench.driver.expired(bench.now_s)
    assert isinstance(error, Timeout)
    assert "unit 4" in str(error)


def test_the_deadline_starts_anew_with_each_exchange_and_spares_computations() -> None:
    bench = Bench(deadline_s=10.0)

    def program() -> Generator[Any, Any, None]:
        yield Exchange({}, {})
        yield Compute(lambda: None, "decode")
        yield Exchange({}, {})

    bench.start(0, program())
    bench.now_s = 9.0
    bench.transport.launches[0][2]({})
    bench.now_s = 100.0
    assert bench.driver.expired(bench.now_s) is None
    bench.computing[0](None, None)
    bench.now_s = 109.0
    assert bench.driver.expired(bench.now_s) is None
    bench.now_s = 111.0
    assert bench.driver.expired(bench.now_s) is not None


def test_an_error_ends_its_program_once_and_later_answers_are_ignored() -> None:
    bench = Bench()
    bench.start(0, exchanges(2))
    bench.start(1, exchanges(1))
    lost = PeerLost(1, "gone")
    bench.transport.launches[0][2](lost)
    assert bench.ends == {0: lost}
    bench.driver.fail(lost)
    bench.transport.launches[1][2]({})
    assert bench.ends == {0: lost, 1: lost}
    assert len(bench.transport.launches) == 2


def test_a_computations_error_ends_its_program_only() -> None:
    bench = Bench()
    closed = []

    def program() -> Generator[Any, Any, None]:
        try:
            yield Compute(lambda: None, "encode")
        finally:
            closed.append(True)

    bench.start(0, program())
    bench.start(1, exchanges(1))
    error = PayloadError("bad")
    bench.computing[0](None, error)
    assert bench.ends == {0: error}
    assert closed == [True]
    bench.transport.launches[0][2]({})
    assert bench.ends == {0: error, 1: None}


def test_observer_is_told_how_long_each_exchange_took() -> None:
    bench, seen = Bench(), []
    bench.driver.observe(lambda task, _, launched_s, seconds: seen.append((task.unit, seconds)))
    bench.start(3, exchanges(1))
    bench.now_s = 2.5
    bench.transport.launches[0][2]({})
    assert seen == [(3, 2.5)]


@pytest.mark.parametrize("compressor", [NoCompression(), Int8(block=32), TopK(density=0.1)])
def test_a_rank_that_stays_away_is_named_by_all_that_wait(compressor: Compressor) -> None:
    world = LoopbackWorld(3, MODEL, compressor, unit_bytes=512, deadline_s=5.0)
    units = list(range(world.unit_count))
    with pytest.raises(Timeout):
        world.step(model_gradients(3, 0), ready=[units, units, units[1:]])
    for rank in (0, 1):
        error = world.errors()[rank]
        assert isinstance(error, Timeout)
        assert error.ranks == (2,)
    assert world.virtual_time_s >= 5.0


def test_a_rank_lost_in_mid_step_ends_the_step_of_the_others() -> None:
    loopback = Loopback(3, bandwidth_bytes_per_s=1e5)
    world = LoopbackWorld(3, MODEL, Int8(block=32), loopback=loopback)
    loopback.clock.at(0.005, lambda: loopback.lose(1))
    with pytest.raises(PeerLost, match="rank 1 is lost"):
        world.step(model_gradients(3, 0))
    for rank in (0, 2):
        error = world.errors()[rank]
        assert isinstance(error, PeerLost)
        assert error.rank == 1


def test_where_a_rank_was_is_not_said_by_what_may_wait_for_ever() -> None:
    bench = Bench()

    def idle() -> Generator[Any, Any, None]:
        yield Exchange({}, {}, grace_s=math.inf)

    bench.start(7, idle(), step=2)
    assert bench.driver.position == "rank 0 was after step 2"
    bench.start(1, exchanges(1), step=3)
    assert bench.driver.position == "rank 0 was in stage 0 of unit 1 (u1), step 3"
