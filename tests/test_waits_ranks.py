"""Whoever holds up the others is named by all of them, and nobody else is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, Pools, same, settings
from _stress_arena import Arena, kinds_here
from _transports import ON_HOST

pytestmark = pytest.mark.ranks


def brisk(compressor: Any = "topk", **exchange: Any) -> dict[str, Any]:
    times = {"heartbeat_s": 0.3, "silence_s": 8.0, "deadline_s": 2.0}
    return settings(compressor, exchange={**times, **exchange})


def check_verdict(seen: Sequence[dict[str, Any]], kind: str, ranks: list[int]) -> None:
    """All raise the same, and name the same."""
    assert [(s["type"], s["ranks"]) for s in seen] == [(kind, ranks)] * len(seen), seen


@pytest.mark.parametrize("chain", [[0, 2, 1], [2, 0, 1], [3, 1, 2, 0], [0, 1, 3, 2]], ids=str)
def test_the_end_of_a_chain_of_waits_is_named(chain: list[int], pools: Pools) -> None:
    group = pools.get(len(chain))
    seen = group.run("_rank_jobs_waits.wait_in_a_chain", config=brisk(), chain=chain)
    check_verdict(seen, "Timeout", [chain[-1]])
    assert max(s["seconds"] for s in seen) < 2.0 + 1.0 + 2.0  # and the machine's load
    assert all(f"rank {chain[-1]} is elsewhere" in s["message"] for s in seen), seen


@pytest.mark.parametrize(("chain", "cycle"), [([0, 2, 0], [0, 2]), ([0, 3, 1, 2, 3], [1, 2, 3])])
def test_a_cycle_of_waits_is_named_as_a_whole(
    chain: list[int], cycle: list[int], four: Group
) -> None:
    seen = four.run("_rank_jobs_waits.wait_in_a_chain", config=brisk(), chain=chain)
    check_verdict(seen, "Timeout", cycle)


@pytest.mark.parametrize("transport", ON_HOST)
def test_all_ranks_of_a_ring_name_the_one_that_does_not_come(transport: str, four: Group) -> None:
    """Each waits for its neighbour, most of which are healthy."""
    config = brisk("none", transport=transport, algorithm="ring", kind="all_reduce")
    seen = four.run(
        "_rank_jobs_waits.be_late_for_a_step", config=config, culprit=1, how="sleep", seconds=5.0
    )
    check_verdict(seen, "Timeout", [1])
    for s in seen:
        assert "rank 1 is outside of the library, after step 1" in s["message"], s


@pytest.mark.parametrize("how", ["stop", "hold the lock"])
def test_who_was_away_for_longer_than_the_silence_says_so_of_itself(
    how: str, fresh: Callable[[int], Group]
) -> None:
    config = brisk(silence_s=2.0, deadline_s=15.0)
    seen = fresh(3).run(
        "_rank_jobs_waits.be_late_for_a_step", config=config, culprit=1, how=how, seconds=6.0
    )
    check_verdict(seen, "PeerLost", [1])
    assert "rank 1 was itself not running for" in seen[1]["message"], seen[1]


@pytest.mark.parametrize("how", ["stop", "hold the lock"])
def test_who_was_away_for_less_than_the_silence_accuses_nobody(
    how: str, fresh: Callable[[int], Group]
) -> None:
    """Not even where that is longer than the deadline for which it waits for others."""
    config = brisk(silence_s=8.0, deadline_s=10.0)
    group = fresh(3)
    seen = group.run(
        "_rank_jobs_waits.be_late_for_a_step", config=config, culprit=1, how=how, seconds=4.0
    )
    check_verdict(seen, "", [])
    plain = group.run("_rank_jobs.train", config=config, steps=5)
    same([s["parameters"] for s in seen] + [p["parameters"] for p in plain])


@pytest.mark.parametrize("others", ["sleep", "step"])
@pytest.mark.parametrize("call", ["save", "load", "switch"])
def test_a_lone_call_fails_alone_and_the_next_one_works(
    call: str, others: str, pools: Pools, tmp_path: Path
) -> None:
    seen = pools.get(3).run(
        "_rank_jobs_waits.call_alone",
        config=brisk(),
        folder=str(tmp_path),
        call=call,
        others=others,
    )
    check_verdict(seen[1:], "", [])
    assert seen[0]["type"] == "Timeout", seen[0]
    elsewhere = "outside of the library, after step 1" if others == "sleep" else "in step 2"
    for part in (f"in handle.{call}", f"rank 1 is {elsewhere}", f"rank 2 is {elsewhere}"):
        assert part in seen[0]["message"], seen[0]
    same([s["parameters"] for s in seen])
    assert [s["left"] for s in seen] == [0, 0, 0]


def test_a_lone_reform_fails_and_all_reform_after_it(pools: Pools) -> None:
    config = brisk(deadline_s=4.0, start_s=2.0) | {"engine": {"recover": True}}
    seen = pools.get(3).run("_rank_jobs_waits.reform_alone", config=config)
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [1, 2]), seen[0]
    check_verdict(seen[1:], "PeerLost", [0])
    same([s["parameters"] for s in seen])
    assert [(s["source"], s["step"]) for s in seen] == [(None, 4)] * 3


def test_different_calls_do_not_meet_and_both_sides_are_named(two: Group, tmp_path: Path) -> None:
    seen = two.run(
        "_rank_jobs_waits.call_alone",
        config=brisk(),
        folder=str(tmp_path),
        call="load",
        others="save",
    )
    check_verdict(seen, "Timeout", [0, 1])
    for part in ("rank 0 is in handle.load", "rank 1 is in handle.save"):
        assert all(part in s["message"] for s in seen), seen


def test_a_lone_broadcast_fails_alone_and_the_next_one_works(fresh: Callable[[int], Group]) -> None:
    seen = fresh(3).run("_rank_jobs_waits.broadcast_alone", config=brisk(deadline_s=1.5))
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [1, 2]), seen[0]
    assert [s["value"] for s in seen] == [[1.0]] * 3


@pytest.fixture
def slow_hosts(pools: Pools) -> Iterator[Group]:
    """Three ranks on hosts of their own, with links on which a step takes seconds."""
    with contextlib.closing(Arena(zygote=pools.zygote, rate="1mbit")) as arena:
        group = arena.network_group(3)
        yield group
        group.end()


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_nobody_is_lost_while_bytes_move(transport: str, slow_hosts: Group) -> None:
    """A step takes several times as long as a peer may be silent."""
    config = brisk("none", transport=transport, silence_s=2.0, deadline_s=100.0)
    seen = slow_hosts.run("_rank_jobs_waits.train_on_a_slow_link", config=config, steps=1)
    assert min(s["seconds"] for s in seen) > 6.0, seen
    check_verdict(seen, "", [])


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
def test_a_deadline_that_a_slow_link_misses_accuses_nobody_alone(slow_hosts: Group) -> None:
    config = brisk("none", silence_s=2.0, deadline_s=3.0)
    seen = slow_hosts.run("_rank_jobs_waits.train_on_a_slow_link", config=config, steps=1)
    (named,) = {tuple(s["ranks"]) for s in seen}
    assert {s["type"] for s in seen} == {"Timeout"}
    assert len(named) > 1, seen


def test_silence_is_noticed_though_a_thread_is_stuck_in_a_send(
    fresh: Callable[[int], Group],
) -> None:
    (noticed_s,) = fresh(2).run(
        "_rank_jobs_waits.send_to_a_stopped_peer", silence_s=4.0, heartbeat_s=1.9
    )[0]
    assert 2.0 < noticed_s < 6.0, noticed_s


def test_a_rank_that_is_elsewhere_is_waited_for_with_a_word_in_the_log(
    fresh: Callable[[int], Group],
) -> None:
    """Longer than a dead or silent one would be."""
    config = brisk(silence_s=2.0, deadline_s=60.0)
    seen = fresh(3).run("_rank_jobs_waits.wait_for_an_evaluation", config=config, seconds=6.0)
    check_verdict(seen, "", [])
    assert seen[0]["logged"] == []
    for rank in (1, 2):
        (text,) = seen[rank]["logged"]
        assert text.startswith(
            f"compressa.engine.control.long_waits: rank {rank} has waited for rank 0 in"
        )
        assert "rank 0 is outside of the library, after step 1" in text


def test_a_lone_call_gives_up_when_others_wait_for_its_rank(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    config = brisk(deadline_s=60.0)
    seen = fresh(3).run(
        "_rank_jobs_waits.wait_in_vain_for_each_other", config=config, folder=str(tmp_path)
    )
    check_verdict(seen[1:], "", [])
    assert (seen[0]["type"], seen[0]["ranks"]) == ("Timeout", [0, 1, 2]), seen[0]
    assert seen[0]["seconds"] < 20.0
    assert "in vain" in seen[0]["message"]
    same([s["parameters"] for s in seen])


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_start_waits_for_a_rank_no_longer_than_it_says(transport: str, four: Group) -> None:
    """Though it waits for much longer where a rank compiles."""
    config = brisk(transport=transport)
    seen = four.run("_rank_jobs_waits.open_late", config=config, culprit=0, seconds=4.5)
    check_verdict(seen[1:], "Timeout", [0])
