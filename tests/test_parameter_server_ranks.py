"""Parameter servers as processes: real sockets, and ranks that die, leave or are late."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from _rank_jobs_server import digest_of, values_of
from _ranks import Group, Outcome, Pools, same, settings
from _server_world import ServerWorld

pytestmark = pytest.mark.ranks

KEYS = {"w": [300, 40], "b": [40]}
DEDICATED: dict[str, Any] = {"servers": 1, "colocated": False}


def impatient(**exchange: Any) -> dict[str, Any]:
    times = {"heartbeat_s": 0.3, "silence_s": 2.0, "deadline_s": 2.0}
    return settings("int8", exchange={**times, **exchange})


def due(size: int, config: Mapping[str, Any], steps: int = 3, **how: Any) -> list[str]:
    """Return what workers get on a virtual clock."""
    world, digests = ServerWorld(size, KEYS, config, **how), []
    for step in range(steps):
        pushed = [values_of(worker.rank, step, KEYS) for worker in world.workers]
        means = world.step([dict(zip(KEYS, own, strict=True)) for own in pushed])
        digests.append(same([digest_of(mean) for mean in means]))
    return digests


@pytest.mark.parametrize(
    ("size", "how", "compressor", "transport"),
    [
        (3, DEDICATED, "none", "tcp"),
        (3, DEDICATED, "topk", "tcp"),
        (3, DEDICATED, "int8", "gloo"),
        (3, {}, "int8", "tcp"),
        (4, {"servers": [0, 2], "colocated": False}, "int8", "tcp"),
        (4, {"servers": [1]}, "topk", "tcp"),
    ],
)
def test_workers_get_the_bits_that_they_get_on_a_virtual_clock_and_leave_nothing_behind(
    size: int, how: dict[str, Any], compressor: str, transport: str, pools: Pools
) -> None:
    config = settings(compressor, exchange={"transport": transport})
    answers = pools.get(size).run("_rank_jobs_server.train", config=config, keys=KEYS, **how)
    expected = due(size, config, **how)
    workers = ServerWorld(size, KEYS, config, **how).placement.workers
    for rank, answer in enumerate(answers):
        assert answer["digests"] == (expected if rank in workers else [])
        assert answer["left"] == []


def test_workers_that_push_in_slots_get_the_same_bits(pools: Pools) -> None:
    config = settings("int8")
    slotted = {**config, "schedule": {"server_bits_per_s": 1e8}}
    answers = pools.get(3).run("_rank_jobs_server.train", config=slotted, keys=KEYS, **DEDICATED)
    for answer in answers[:2]:
        assert answer["digests"] == due(3, config, **DEDICATED)
        assert answer["left"] == []


@pytest.mark.parametrize("connections", [1, 3])
def test_workers_a_step_ahead_of_a_late_one_get_the_same(connections: int, pools: Pools) -> None:
    config = settings("int8", exchange={"connections": connections})
    digests = pools.get(3).run("_rank_jobs_server.train_ahead", config=config, keys=KEYS)
    assert same(digests) == due(3, config, steps=6)


def test_the_example_of_the_documentation_runs(pools: Pools) -> None:
    assert pools.get(3).run("_rank_jobs_server.run_example") == [3, 3, 0]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("shape", "the ranks differ in"),
        ("order", "the ranks differ in order of keys"),
        ("one is wrong", "servers = 9 does not name servers among 2 ranks"),
    ],
)
def test_ranks_that_do_not_agree_are_refused_and_can_open_again(
    what: str, said: str, two: Group
) -> None:
    outcomes = two.errors("_rank_jobs_server.open_differently", config=impatient(), what=what)
    assert {outcome.error["type"] for outcome in outcomes if outcome.error} == {"ConfigError"}
    assert all(outcome.error and said in outcome.error["message"] for outcome in outcomes)
    two.run("_rank_jobs_server.open_differently", config=impatient(), what="nothing")


def test_a_colocated_server_works_for_as_long_as_some_worker_does(two: Group) -> None:
    config = impatient(deadline_s=1.0)
    answers = two.run("_rank_jobs_server.close_late", config=config, keys=KEYS)
    assert answers == [[], []]


def check(outcomes: list[Outcome], within_s: float) -> list[dict[str, Any]]:
    """Look at what survivors saw; they leave nothing behind."""
    for outcome in outcomes:
        assert outcome.ok, outcome.explain()
        assert outcome.value["seconds"] < within_s, outcome.value
        assert outcome.value["left"] == []
        assert outcome.value["again"] in ("", outcome.value["message"])
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize(
    ("how", "culprit", "options"),
    [
        ("kill", 1, {}),
        ("kill", 0, DEDICATED),
        ("kill", 2, DEDICATED),
        ("stop", 2, DEDICATED),
        ("leave", 1, DEDICATED),
    ],
)
def test_a_worker_or_server_that_is_lost_is_named_by_all_others(
    how: str, culprit: int, options: dict[str, Any], fresh: Callable[[int], Group]
) -> None:
    group = fresh(3)
    job = {"config": impatient(deadline_s=20.0), "keys": KEYS, "culprit": culprit, "how": how}
    started = group.start("_rank_jobs_server.fail", **job, **options)
    for seen in check(group.collect([p for p in started if p.rank != culprit], 20.0), 8.0):
        assert (seen["type"], seen["rank"]) == ("PeerLost", culprit), seen
        assert f"rank {culprit} is lost" in seen["message"]
    if how == "kill":
        assert group.collect([started[culprit]], 5.0)[0].exit_code == -signal.SIGKILL


def test_a_late_worker_is_named_by_all(pools: Pools) -> None:
    job = {"config": impatient(), "keys": KEYS, "culprit": 1, "how": "sleep"}
    outcomes = pools.get(3).outcomes("_rank_jobs_server.fail", **job)
    for seen in check(outcomes, 8.0):
        assert seen["type"] in ("Timeout", "PeerLost"), seen
        assert "for ranks 1 in" in seen["message"], seen
        assert "push of key 'w" in seen["message"], seen
        assert "step 2" in seen["message"], seen


def test_attackers_at_the_door_change_nothing_and_take_little(
    fresh: Callable[[int], Group],
) -> None:
    """Crowds, drips, absurd lengths and echoes, while the workers that are due are late."""
    config, late_s = settings("int8"), 1.5
    job = "_rank_jobs_server.train_besieged"
    answers = fresh(3).run(job, config=config, keys=KEYS, late_s=late_s)
    assert same([answer["digest"] for answer in answers]) == due(3, config, steps=1)[0]
    for answer in answers:
        assert late_s < answer["opened_s"] < 20.0
        assert answer["grown_kb"] < 64 << 10
        assert answer["left"] == []
