"""Servers that keep values, on a virtual clock: staleness by counting, mass, order, faults."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from _server_world import DEADLINE_S, ServerWorld
from _stale_runs import Run, count, counting, delays
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs.payload import HEADER_BYTES
from compressa.errors import CompressaError, ConfigError, PayloadError, StateError, Timeout
from compressa.parameter_server import Consistency
from compressa.parameter_server.protocol import Kind
from compressa.parameter_server.stale_copy import StaleCopy


def keeps_its_promise(seed: int, workers: int, staleness: int, steps: int, servers: int) -> None:
    """Under random delays: a step begins with all updates of all others up to clock - s."""
    loopback, step_s = delays(seed, workers)
    world = counting(workers, Consistency(staleness), loopback=loopback, servers=servers)

    def train(worker: int, copy: StaleCopy) -> None:
        began = copy._began[0].tolist()
        for other in {*range(workers)} - {worker}:
            have = workers * began[other]  # each update counts 1 / P
            assert have >= copy.clock - staleness + 1 - 1e-3, (seed, worker, other, copy.clock)
        assert copy.front >= copy.clock - staleness
        count(worker, copy)

    run = Run(world, train, steps, step_s)
    assert run.left == [0] * workers
    assert run.widest <= staleness + 1


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), staleness=st.sampled_from([0, 1, 2, 5]))
def test_values_never_lack_what_the_staleness_promises(seed: int, staleness: int) -> None:
    keeps_its_promise(seed, 4, staleness, 12, servers=4)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_values_never_lack_it_in_10_000_schedules(staleness: int) -> None:
    """A third of them each."""
    for seed in range(3334):
        keeps_its_promise(seed, 2 + seed % 2, staleness, staleness + 2, servers=1)


@pytest.mark.parametrize("compressor", ["none", "int8", "topk", "qsgd", "bf16"])
def test_without_staleness_all_take_the_mean_and_the_same_bits(compressor: str) -> None:
    choice = {"name": compressor, **({"density": 0.2} if compressor == "topk" else {})}
    settings = {"compressor": choice, "dense_below": {"elems": 0}}
    keys = {"w": (40 * 33,), "b": (7,)}
    loopback, step_s = delays(7, 4)
    world = ServerWorld(4, keys, settings, consistency=Consistency(0), loopback=loopback)
    generators = [torch.Generator().manual_seed(worker) for worker in range(4)]
    given = [torch.zeros(40 * 33, dtype=torch.float64) for _ in range(4)]

    def train(worker: int, copy: StaleCopy) -> None:
        for key, own in enumerate(copy.own):
            update = torch.randn(own.shape, generator=generators[worker])
            own += update
            if key == 0:
                given[worker] += (own - copy._began[0]).double()

    run = Run(world, train, 6, step_s)
    for copy in run.copies[1:]:
        assert all(map(torch.equal, copy.own, run.copies[0].own))
    # Nothing is lost: values, and the mean of what workers still owe, are the mean of all updates.
    values = run.values[: 40 * 33].double()
    owed = sum(
        worker.state.vectors.get("residual/w", torch.zeros(1)).double() / 4
        for worker in world.workers
    )
    if compressor not in ("qsgd", "bf16"):  # which keep no residual unless asked to
        assert (values + owed - sum(given) / 4).abs().max() < 1e-4


def test_answers_make_up_for_what_earlier_ones_lacked() -> None:
    settings = {"compressor": {"name": "topk", "density": 0.05}, "dense_below": {"elems": 0}}
    start = {"w": torch.randn(1000)}
    world = ServerWorld(
        3, {"w": (1000,)}, settings, consistency=Consistency(math.inf), values=start
    )
    done = [0, 0, 0]

    def train(worker: int, copy: StaleCopy) -> None:
        if worker == 0 and done[0] == 0:
            copy.own[0] += torch.randn(1000)
        done[worker] += 1

    run = Run(world, train, 60, lambda worker: 1.0)
    values = run.values
    for copy in run.copies:
        assert torch.allclose(copy.own[0], values, atol=1e-6)
    assert not torch.allclose(values, start["w"], atol=1e-2)


def test_a_slow_worker_holds_nobody_up_without_a_bound_and_by_s_steps_with_one() -> None:
    def slowest_first(worker: int) -> float:
        return 10.0 if worker == 0 else 1.0

    free = Run(counting(3, Consistency(math.inf)), count, 20, slowest_first)
    assert free.done_s[1] == pytest.approx(20.0)
    bound = Run(counting(3, Consistency(4)), count, 20, slowest_first)
    assert bound.done_s[1] == pytest.approx(160, rel=0.1)
    assert bound.widest <= 5


def test_backup_workers_are_not_waited_for_and_what_is_late_is_dropped() -> None:
    world = counting(4, Consistency(0, backup_workers=1))
    run = Run(world, count, (2, 20, 20, 20), lambda worker: 10.0 if worker == 0 else 1.0)
    assert run.done_s[1] == run.done_s[3] == pytest.approx(20.0)
    values = run.values
    assert values[1:].tolist() == pytest.approx([20 / 3] * 3)  # of the three that count
    assert values[0] == 0
    assert run.copies[0].clock >= 10  # it goes on with the others


def test_weights_of_stale_updates() -> None:
    """Of three workers that take turns, each update meets two others' since the last answer."""
    for weighting, expected in (("mean", 1 / 3), ("sum", 1.0), ("staleness", 1 / 3)):
        world = counting(3, Consistency(math.inf, weighting=weighting))
        begun = [1.0, 1.1, 1.2]
        step_s = functools.partial(_first_apart, begun)
        values = Run(world, count, 50, step_s).values
        assert values.tolist() == pytest.approx([50 * expected] * 3, rel=0.05), weighting


def test_an_update_weighs_the_less_the_more_others_came_since_its_answer() -> None:
    """One worker takes ten times as long as two that take turns."""
    world = counting(3, Consistency(math.inf, weighting="staleness"))
    begun = [1.0, 1.1, 1.6]

    def step_s(worker: int) -> float:
        return _first_apart(begun, worker) * (10.0 if worker == 0 else 1.0)

    slow, *quick = Run(world, count, (5, 50, 50), step_s).values.tolist()
    assert slow / 5 == pytest.approx(1 / 21, rel=0.1)  # the others have 10 each
    usual = 0.9 / 2 + 0.1 / 3  # the other quick one has one, and one time in ten the slow one
    assert [each / 50 for each in quick] == pytest.approx([usual] * 2, rel=0.05)


def _first_apart(begun: list[float], worker: int) -> float:
    first, begun[worker] = begun[worker], 1.0
    return first


def test_delays_are_compensated_as_in_the_paper() -> None:
    """Two workers of one server: the second's update meets values that the first has changed."""
    values, rate, lambda_ = torch.tensor([1.0, -2.0, 0.5]), 0.1, 0.7
    world = ServerWorld(
        3,
        {"w": (3,)},
        consistency=Consistency(math.inf, weighting="sum", delay_compensation=lambda_),
        values={"w": values},
        servers=1,
        colocated=False,
    )
    gradients = [torch.tensor([1.0, 2.0, -1.0]), torch.tensor([-0.5, 1.0, 3.0])]
    copies = [StaleCopy(w, ["w"], [values.clone()], math.inf) for w in world.workers]
    for copy, gradient in zip(copies, gradients, strict=True):
        copy.own[0] -= rate * gradient
        copy.advance(rate)
        world.loopback.clock.run()
    moved = values - rate * gradients[0]
    compensated = gradients[1] + lambda_ * gradients[1] ** 2 * (moved - values)
    (kept,) = world.servers[0]._shards.values()
    assert torch.allclose(kept.values, moved - rate * compensated)


def test_all_go_on_from_one_clock_after_they_met() -> None:
    settings = {"compressor": "int8", "dense_below": {"elems": 0}}
    world = ServerWorld(3, {"w": (999,)}, settings, consistency=Consistency(math.inf))
    run = Run(world, count, 10, lambda worker: 1.0 + worker)
    handles = zip(world.workers, run.meetings, strict=True)
    assert all(torch.equal(w.wait(h)["w"], run.values) for w, h in handles)
    assert {worker.front("w") for worker in world.workers} == {max(c.clock for c in run.copies) + 1}


def test_settings_that_do_not_go_together_are_refused() -> None:
    for wrong in (
        {"staleness": -1},
        {"staleness": 0.5},
        {"staleness": math.nan},
        {"staleness": 2, "backup_workers": 1},
        {"staleness": 0, "backup_workers": -1},
        {"staleness": 0, "weighting": "sum"},
        {"staleness": 0, "delay_compensation": 0.1},
        {"staleness": 1, "delay_compensation": -0.1},
    ):
        with pytest.raises(ConfigError):
            Consistency(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only 2 workers"):
        counting(2, Consistency(0, backup_workers=2))


def test_a_worker_that_waits_for_too_long_names_who_is_late() -> None:
    world = counting(3, Consistency(1))
    copy = StaleCopy(world.workers[0], ["counts"], [torch.zeros(3)], 1)
    for _ in range(2):
        count(0, copy)
        copy.advance()
        world.loopback.clock.run()
    clock = world.loopback.clock
    assert clock.now_s >= DEADLINE_S
    errors = [session.error for session in world.sessions]
    assert all(isinstance(error, Timeout) for error in errors)
    assert {1, 2} == set(errors[0].ranks)


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_no_answer_with_another_header_is_taken(byte: int) -> None:
    settings = {"compressor": "int8", "dense_below": {"elems": 0}}
    world = ServerWorld(
        3, {"w": (512,)}, settings, consistency=Consistency(1), servers=1, colocated=False
    )
    transport = world.loopback.transports[2]
    send = transport.send

    def spoilt(peer: int, key: Any, buffer: torch.Tensor, *rest: Any) -> None:
        data = buffer.clone()
        data[byte] ^= 0xFF
        send(peer, key, data, *rest)

    transport.send = spoilt  # type: ignore[method-assign]
    copy = StaleCopy(world.workers[0], ["w"], [torch.zeros(512)], 1)
    copy.advance()
    world.loopback.clock.run()
    assert isinstance(world.sessions[0].error, PayloadError), byte


def test_no_request_out_of_order_is_taken() -> None:
    for tell in (
        lambda w: [w._tell(Kind.PULL, 0, [0])],
        lambda w: [w._tell(Kind.PUSH, 1 << 25, [0])],
        lambda w: [w._tell(Kind.PUSH, 0, [0]), w._tell(Kind.PUSH, 1, [0])],
    ):
        world = counting(3, Consistency(1), servers=1, colocated=False)
        tell(world.workers[0])
        world.loopback.clock.run()
        assert isinstance(world.sessions[2].error, PayloadError)


def test_a_worker_pushes_after_the_answer_only() -> None:
    worker = counting(3, Consistency(1)).workers[0]
    worker.push("counts", torch.zeros(3))
    with pytest.raises(StateError, match="not answered"):
        worker.push("counts", torch.zeros(3), step=1)
    with pytest.raises(StateError, match="pushed"):
        worker.pull("counts", step=1)


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_update_that_comes_after_its_worker_left_holds_nobody_up(staleness: int) -> None:
    world = counting(3, Consistency(staleness), servers=[0])
    leaver = world.workers[1]
    leaver.push("counts", torch.ones(3))
    leaver._tell(Kind.CLOSE, 0, ())
    copies = [StaleCopy(w, ["counts"], [torch.zeros(3)], staleness) for w in world.workers]
    for _ in range(6):
        for worker in (0, 2):
            count(worker, copies[worker])
            copies[worker].advance()
        world.loopback.clock.run()
        for worker in (0, 2):
            assert world.sessions[worker].error is None
            copies[worker].land()
            assert not copies[worker].behind


def test_a_rate_of_zero_is_one() -> None:
    rule = Consistency(math.inf, delay_compensation=0.5)
    world = counting(3, rule, servers=1, colocated=False)
    copy = StaleCopy(world.workers[0], ["counts"], [torch.zeros(2)], math.inf)
    copy.advance(0.0)
    world.loopback.clock.run()
    copy.land()
    world.raise_failure()


def test_waiting_takes_one_timer_however_many_steps_there_are() -> None:
    world, timers = counting(2, Consistency(0)), []
    for session in world.sessions:
        session.call_at = lambda time_s, event: timers.append(event)  # type: ignore[method-assign]
    Run(world, count, 200, lambda worker: 0.01)
    assert len(timers) == len(world.job.table.shards)


def test_servers_go_back_to_earlier_values_and_steps() -> None:
    world = counting(2, Consistency(1))
    run = Run(world, count, 6, lambda worker: 1.0)
    for copy, meeting in zip(run.copies, run.meetings, strict=True):
        copy._worker.wait(meeting)
    for worker in world.workers:
        worker.restart([torch.zeros(2)], 2)
    copies = [StaleCopy(w, ["counts"], [torch.zeros(2)], 1, 2) for w in world.workers]
    for _ in range(3):
        for worker, copy in enumerate(copies):
            count(worker, copy)
            copy.advance()
        world.loopback.clock.run()
        for copy in copies:
            copy.land()
    world.raise_failure()
    assert all(copy.clock == 5 for copy in copies)


def test_who_leaves_is_not_waited_for() -> None:
    world = counting(3, Consistency(2), servers=1)
    world.workers[0]._say_goodbye()
    copies = [StaleCopy(w, ["counts"], [torch.zeros(3)], 2) for w in world.workers]
    for _ in range(10):
        for worker in (1, 2):
            count(worker, copies[worker])
            copies[worker].advance()
            world.loopback.clock.run()
            assert world.sessions[worker].error is None
            if copies[worker].awaited is not None and copies[worker].awaited.done:
                copies[worker].land()
    assert not isinstance(world.sessions[1].error, CompressaError)
