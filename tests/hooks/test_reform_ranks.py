"""Survivors of a lost rank go on with the same model and handle, and owe what they owed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _mass import LR, Balance, check_state, gradients
from _rank_models import Linear
from _rank_strikes import in_encode, in_exchange
from _ranks import Group, same, settings
from _training import digest, lasting_threads
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.tracing.reader import read

pytestmark = pytest.mark.ranks

TIMES = {"heartbeat_s": 0.3, "silence_s": 3.0, "deadline_s": 10.0}
MOST_ERROR = 2e-6  # of float32
_MOMENTS = {"encode": in_encode, "exchange": in_exchange}


def go_on_without(
    *,
    config: Any,
    culprits: list[int],
    moment: str,
    at: int = 3,
    steps: int = 8,
    static_graph: bool = False,
) -> dict[str, Any]:
    """Train; ranks are killed in the middle of steps, and the others go on without them.

    Args:
        config: The configuration.
        culprits: Who is killed, one after the other: the first in step `at`, the next one in the
            step after it.
        moment: "encode" or "exchange".
        at: The step.
        steps: How many steps are trained in all.
        static_graph: As DDP takes it.
    """
    rank, alive = dist.get_rank(), list(range(dist.get_world_size()))
    net = Linear()
    wrapped = DistributedDataParallel(net, static_graph=static_graph)
    handle = compressa.register_comm_hook(wrapped, config)
    balance, events = Balance(handle), []

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.ExitStack() as stack:
        if rank in culprits:
            stack.enter_context(_MOMENTS[moment](at + culprits.index(rank), kill))
        step = 0
        while step < steps:
            before = {k: v.clone() for k, v in handle.state_dict().items()}
            try:
                net.zero_grad()
                vectors = gradients(rank, step)
                wrapped(*vectors).backward()
            except compressa.CompressaError as error:
                events.append([type(error).__name__, getattr(error, "rank", None), step])
                alive.remove(culprits[len(events) - 1])
                source = handle.reform(alive)
                group = wrapped.process_group
                assert source is None
                assert handle.next_step == step
                if len(alive) > 1:  # as who has fallen behind takes over parameters
                    compressa.broadcast(net, group=group)
                check_state(before, handle, len(alive) / (len(alive) + 1))
                balance = Balance(handle, group)
                continue
            balance.give(vectors)
            balance.get(net)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= LR * parameter.grad
            step += 1
    result = {
        "events": events,
        "parameters": digest(net),
        "errors": balance.errors(handle),
        "steps": handle.next_step,
    }
    handle.close()
    return result | {"left": lasting_threads(2.0)}  # a worker may be in the middle of something


def one_is_ahead(*, config: Any, begun: bool) -> dict[str, Any]:
    """Rank 0 has finished a step, rank 1 takes it for interrupted; they go on together.

    Args:
        config: The configuration.
        begun: Whether rank 0 has begun the next step, too, and so can not go back.
    """
    rank = dist.get_rank()
    net = Linear()
    wrapped = DistributedDataParallel(net)
    handle = compressa.register_comm_hook(wrapped, config)
    for step in range(4):
        before = {k: v.clone() for k, v in handle.state_dict().items()}
        _step(net, wrapped, rank, step, apply=rank == 0 or step < 3)  # rank 1 is behind
    engine = handle.engine
    engine.interrupted = rank == 1
    if begun and rank == 0:
        assert engine.undo is not None
        engine.undo.keep(4)
    group = dist.new_group([0, 1])
    try:
        source = handle.reform(group)
    except compressa.StateError as error:
        handle.close()
        return {"error": str(error)}
    assert handle.next_step == 3
    check_state(before, handle, 1.0)
    assert source is not None
    compressa.broadcast(net, group=group, sources=[source])
    for step in range(3, 6):
        _step(net, wrapped, rank, step)
    handle.close()
    return {"source": source, "parameters": digest(net)}


def _step(
    net: torch.nn.Module,
    wrapped: DistributedDataParallel,
    rank: int,
    step: int,
    *,
    apply: bool = True,
) -> None:
    net.zero_grad()
    wrapped(*gradients(rank, step)).backward()
    if apply:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= LR * parameter.grad


def plain(*, config: Any, steps: int) -> str:
    """Train without any loss; return the parameters' digest."""
    net = Linear()
    wrapped = DistributedDataParallel(net)
    handle = compressa.register_comm_hook(wrapped, config)
    for step in range(steps):
        _step(net, wrapped, dist.get_rank(), step)
    handle.close()
    return digest(net)


def reform_without_copy(*, config: Any) -> None:
    """Ask for what the configuration does not allow."""
    wrapped = DistributedDataParallel(Linear())
    handle = compressa.register_comm_hook(wrapped, config)
    try:
        handle.reform(dist.group.WORLD)
    finally:
        handle.close()


def recoverable(compressor: Any, **how: Any) -> dict[str, Any]:
    exchange = {**TIMES, **how.pop("exchange", {})}
    return settings(compressor, exchange=exchange, engine={"recover": True}, **how)


@pytest.mark.parametrize(
    ("compressor", "how", "moment"),
    [
        ("topk", {}, "exchange"),
        ("int8", {"exchange": {"kind": "scatter_reduce"}}, "encode"),
        ("powersgd", {}, "exchange"),
        (
            "topk",
            {"feedback": {"kind": "ef21"}, "exchange": {"transport": "gloo-group"}},
            "exchange",
        ),
    ],
)
def test_two_of_three_go_on(
    compressor: str,
    how: dict[str, Any],
    moment: str,
    fresh: Callable[[int], Group],
    tmp_path: Path,
) -> None:
    group = fresh(3)
    config = recoverable(compressor, trace={"path": str(tmp_path / "t.json")}, **how)
    started = group.start(go_on_without, config=config, culprits=[1], moment=moment)
    outcomes = group.collect(started, 60.0)
    assert outcomes[1].exit_code == -signal.SIGKILL
    survivors = [outcomes[0], outcomes[2]]
    for outcome in survivors:
        assert outcome.ok, outcome.explain()
        ((kind, lost, _),) = outcome.value["events"]
        assert (kind, lost) == ("PeerLost", 1)
        assert outcome.value["steps"] == 8
        assert outcome.value["left"] == []
        if "feedback" not in how:  # EF21 owes nothing
            assert max(outcome.value["errors"]) < MOST_ERROR, outcome.value
    same([outcome.value["parameters"] for outcome in survivors])
    for rank in (0, 2):
        group.processes[rank].leave()
        assert group.processes[rank].wait(15.0) == 0, group.processes[rank].stderr
        # One trace of all steps, under the number that the rank had when it began.
        trace = read(tmp_path / f"t-rank{rank}.json")
        assert [step for step, _ in trace.steps] == list(range(8))
        assert {span.step for span in trace.spans} == set(range(8))
    assert not (tmp_path / "t-rank1.json").exists()


def test_the_last_survivor_goes_on_alone(fresh: Callable[[int], Group]) -> None:
    group = fresh(3)
    started = group.start(
        go_on_without,
        config=recoverable("topk"),
        culprits=[2, 1],
        moment="exchange",
        static_graph=True,
    )
    survivor = group.collect(started, 60.0)[0]
    assert survivor.ok, survivor.explain()
    assert survivor.value["events"] == [["PeerLost", 2, 3], ["PeerLost", 1, 4]]
    assert max(survivor.value["errors"]) < MOST_ERROR, survivor.value


def test_who_has_finished_more_goes_back_and_takes_over_parameters(two: Group) -> None:
    config = recoverable("topk")
    outcomes = two.run(one_is_ahead, config=config, begun=False)
    assert [outcome["source"] for outcome in outcomes] == [1, 1]
    undisturbed = two.run(plain, config=config, steps=6)
    assert same([outcome["parameters"] for outcome in outcomes]) == same(undisturbed)


def test_who_has_gone_too_far_ends_it_for_all(two: Group) -> None:
    config = recoverable("topk")
    outcomes = two.run(one_is_ahead, config=config, begun=True)
    assert "rank 0 can go back to step 4" in same([outcome["error"] for outcome in outcomes])


def test_without_a_copy_there_is_nothing_to_go_back_to(two: Group) -> None:
    for message in two.refused(reform_without_copy, "StateError", config=settings("topk")):
        assert "engine.recover = true" in message
