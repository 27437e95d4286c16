"""Survivors of a lost rank go on with the same model and handle, and owe what they owed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, same, settings

from compressa.tracing.reader import read

pytestmark = pytest.mark.ranks

TIMES = {"heartbeat_s": 0.3, "silence_s": 3.0, "deadline_s": 10.0}
EF21 = {"kind": "ef21"}
MOST_ERROR = 2e-6  # of float32


def recoverable(compressor: Any, **how: Any) -> dict[str, Any]:
    exchange = {**TIMES, **how.pop("exchange", {})}
    return settings(compressor, exchange=exchange, engine={"recover": True}, **how)


@pytest.mark.parametrize(
    ("compressor", "how", "moment"),
    [
        ("topk", {}, "exchange"),
        ("int8", {"exchange": {"kind": "scatter_reduce", "transport": "gloo"}}, "encode"),
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
    started = group.start(
        "_rank_jobs_reform.go_on_without", config=config, culprits=[1], moment=moment
    )
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
        group.processes[rank].call(None, {})
        assert group.processes[rank].wait(15.0) == 0, group.processes[rank].stderr
        # One trace of all steps, under the number that the rank had when it began.
        trace = read(tmp_path / f"t-rank{rank}.json")
        assert [step for step, _ in trace.steps] == list(range(8))
        assert {span.step for span in trace.spans} == set(range(8))
    assert not (tmp_path / "t-rank1.json").exists()


def test_the_last_survivor_goes_on_alone(fresh: Callable[[int], Group]) -> None:
    group = fresh(3)
    started = group.start(
        "_rank_jobs_reform.go_on_without",
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
    outcomes = two.run("_rank_jobs_reform.one_is_ahead", config=config, begun=False)
    assert [outcome["source"] for outcome in outcomes] == [1, 1]
    undisturbed = two.run("_rank_jobs_reform.plain", config=config, steps=6)
    assert same([outcome["parameters"] for outcome in outcomes]) == same(undisturbed)


def test_who_has_gone_too_far_ends_it_for_all(two: Group) -> None:
    config = recoverable("topk")
    outcomes = two.run("_rank_jobs_reform.one_is_ahead", config=config, begun=True)
    assert "rank 0 can go back to step 4" in same([outcome["error"] for outcome in outcomes])


def test_without_a_copy_there_is_nothing_to_go_back_to(two: Group) -> None:
    for outcome in two.errors("_rank_jobs_reform.reform_without_copy", config=settings("topk")):
        assert outcome.error is not None
        assert outcome.error["type"] == "StateError"
        assert "engine.recover = true" in outcome.error["message"]
