"""A rank lost in each strategy that goes on without it, with no call of the training loop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _attached import Regression, sgd, take_step, values_of
from _averaging_oracle import Rank, Values, batch
from _rank_strikes import in_exchange
from _ranks import Group, Pools, same, settings
from _training import join, lasting_threads

import compressa
from compressa.strategies.ad_psgd import PairAveraging
from compressa.strategies.base import EngineStrategy
from compressa.strategies.bounded import Stale
from compressa.strategies.sgp import GradientPush

pytestmark = pytest.mark.ranks

TIMES = {"heartbeat_s": 0.3, "silence_s": 3.0, "deadline_s": 10.0}
CALM = {"name": "diloco", "outer_rate": 0.5, "outer_momentum": 0.5}
GOING_ON: list[dict[str, Any]] = [
    {"name": "gossip", "every": 2},
    {"name": "gossip", "graph": "exponential"},
    {"name": "sgp"},
    {"name": "local_sgd", "every": 3},
    {"name": "post_local_sgd", "every": 3, "after_steps": 4},
    {**CALM, "every": 3},
    {**CALM, "every": 4, "fragments": 2, "overlap_steps": 1, "mixing": 0.3},
    {"name": "easgd", "every": 3},
    {"name": "ad_psgd"},
    {"name": "async"},
    {"name": "bounded", "staleness": 2},
    {"name": "bounded", "staleness": 0, "servers": 2},
    {"name": "bounded", "staleness": 0, "backup_workers": 1},
    {"name": "central"},
]


def on(rank: int, net: torch.nn.Module) -> float:
    """The loss on a rank's fixed examples, of targets that all ranks have alike."""
    x, y = (torch.from_numpy(a).float() for a in batch(rank, 0))
    with torch.no_grad():
        return float((net(x) - (y - rank)).square().mean())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def size_of(strategy: compressa.Strategy) -> int:
    """How many ranks train."""
    if isinstance(strategy, EngineStrategy):
        return strategy.handle.group.size()
    assert isinstance(strategy, Stale | PairAveraging), "it has a session"
    return (strategy.worker if isinstance(strategy, Stale) else strategy).session.size


def go_on_without(
    *,
    config: Any,
    culprits: dict[int, int],
    moment: str,
    steps: int = 24,
    sync_at: int = 0,
    pause_s: float = 0.0,
) -> dict[str, Any]:
    """Train; some ranks are killed, and the others' loop is as it always is.

    Args:
        config: The configuration.
        culprits: By rank, in which step, or meeting, it is killed.
        moment: "exchange", in the middle of a meeting; "between" two steps; "sync"; "going on",
            where the first of them is killed between two steps, and the others as they go on
            without it.
        steps: How many are trained.
        sync_at: After which step ranks sync besides.
        pause_s: How much longer a step takes.
    """
    rank = dist.get_rank()
    at = culprits.get(rank)
    net = Regression()
    with (
        contextlib.ExitStack() as stack,
        warnings.catch_warnings(record=True) as told,
        compressa.attach(net, sgd(net), config) as strategy,
    ):
        warnings.simplefilter("always")
        if at is not None and moment == "exchange":
            stack.enter_context(in_exchange(at, die))
        if at is not None and moment == "going on":
            strategy._reunite = die  # type: ignore[method-assign]
        losses = []
        for step in range(steps):
            if at == step and moment in ("between", "going on"):
                die()
            x, y = (torch.from_numpy(a).float() for a in batch(rank, step))
            time.sleep(pause_s)
            strategy.optimizer.zero_grad()
            (strategy.model(x) - (y - rank)).square().mean().backward()
            strategy.step()
            if step == sync_at:
                if at == step and moment == "sync":
                    die()
                strategy.sync()
            losses.append(on(rank, net))
        weights = [strategy.weight.item()] if isinstance(strategy, GradientPush) else []
        strategy.sync()
        result = {
            "weights": weights,
            "values": values_of(net),
            "losses": [*losses, on(rank, net)],
            "group": size_of(strategy),
            "met": strategy.stats().steps,
            "warned": [str(w.message) for w in told if "is lost" in str(w.message)],
        }
    return result | {"left": lasting_threads(2.0)}


def with_a_store_apart(pools: Pools, size: int) -> tuple[Group, dist.TCPStore]:
    """Return ranks whose store is that of a launcher, and so outlives any of them."""
    address, group = "127.0.0.1", pools.strangers(size)
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    per_rank = [{"rank": rank} for rank in range(size)]
    group.run(join, per_rank=per_rank, size=size, address=address, port=store.port)
    return group, store


def survive(
    pools: Pools, strategy: dict[str, Any], ranks: int, culprits: dict[int, int], **how: Any
) -> list[dict[str, Any]]:
    """Run it, and check what holds of the survivors whatever the strategy; return what they say."""
    config = settings(
        how.pop("compressor", "none"),
        strategy=strategy,
        engine={"recover": True},
        exchange=TIMES,
        **how.pop("sections", {}),
    )
    group, _store = with_a_store_apart(pools, ranks)
    started = group.start(go_on_without, config=config, culprits=culprits, **how)
    outcomes = group.collect(started, 60.0)
    found = []
    for outcome in outcomes:
        if outcome.rank in culprits:
            assert outcome.exit_code == -signal.SIGKILL
            continue
        assert outcome.ok, outcome.explain()
        value = outcome.value
        assert value["group"] == ranks - len(culprits)
        assert len(value["warned"]) == len(culprits), value["warned"]
        assert value["left"] == []
        assert value["losses"][-1] < 0.5 * value["losses"][0], value["losses"]
        found.append(value)
    same([value["values"] for value in found])
    if strategy["name"] == "sgp":  # what was pushed to who is lost went with it; the rest is whole
        weights = [weight for value in found for weight in value["weights"]]
        assert sum(weights) == pytest.approx(len(found), rel=1e-12)
    survivors = [group.processes[rank] for rank in range(ranks) if rank not in culprits]
    for process in survivors:
        process.leave()
    assert [process.wait(15.0) for process in survivors] == [0] * len(survivors)
    group.end()
    return found


FIRST_OR_SECOND = [
    *((strategy, "exchange", 1) for strategy in GOING_ON),
    *((strategy, "between", 0) for strategy in GOING_ON),  # who leads where anybody does
    *((GOING_ON[i], "exchange", 0) for i in (0, 3, 8, -1)),
    *((GOING_ON[i], "between", 1) for i in (0, 3, 8, -1)),
]


@pytest.mark.parametrize(("strategy", "moment", "culprit"), FIRST_OR_SECOND, ids=str)
def test_the_others_go_on(
    strategy: dict[str, Any], moment: str, culprit: int, pools: Pools
) -> None:
    at = 2 if moment == "exchange" else 7
    pause_s = 0.1 if strategy["name"] in ("async", "ad_psgd") else 0.0  # they hear of it meanwhile
    steps = 48 if strategy["name"] == "bounded" else 24  # how stale copies are depends on the cores
    how = {"moment": moment, "pause_s": pause_s, "steps": steps}
    for value in survive(pools, strategy, 3, {culprit: at}, **how):
        assert f"rank {culprit} is lost, and the other 2 go on without it" in value["warned"][0]
        assert value["met"] > 1


@pytest.mark.parametrize(
    ("strategy", "compressor"),
    [
        ({"name": "local_sgd", "every": 3}, "powersgd"),
        ({"name": "local_sgd", "every": 3}, "int8"),
        ({**CALM, "every": 3}, "int4"),
        ({"name": "gossip", "consensus": 0.5}, "int4"),
        ({"name": "sgp"}, "int8"),
        ({"name": "ad_psgd"}, "int8"),
        ({"name": "bounded", "staleness": 0}, "int8"),
    ],
    ids=str,
)
def test_compressed_ranks_go_on(strategy: dict[str, Any], compressor: str, pools: Pools) -> None:
    sections = {"dense_below": {"elems": 0}}
    survive(pools, strategy, 3, {1: 2}, moment="exchange", compressor=compressor, sections=sections)


def test_residuals_of_few_bits_go_on(pools: Pools) -> None:
    sections = {"dense_below": {"elems": 0}, "feedback": {"kind": "error", "dtype": "int8"}}
    strategy = {"name": "bounded", "staleness": 1}
    survive(pools, strategy, 3, {1: 7}, moment="between", compressor="int4", sections=sections)


@pytest.mark.parametrize("name", ["gossip", "diloco", "ad_psgd", "central"])
def test_the_last_one_goes_on_alone(name: str, pools: Pools) -> None:
    strategy = next(s for s in GOING_ON if s["name"] == name)
    pause_s = 0.3 if name == "ad_psgd" else 0.0  # the first loss is over when the second comes
    survive(pools, strategy, 3, {2: 4, 1: 11}, moment="between", pause_s=pause_s)


@pytest.mark.parametrize("strategy", [GOING_ON[0], GOING_ON[3]], ids=str)
def test_who_is_lost_while_the_others_go_on_is_left_behind_as_well(
    strategy: dict[str, Any], pools: Pools
) -> None:
    survive(pools, strategy, 4, {1: 7, 2: 100}, moment="going on")


@pytest.mark.parametrize("strategy", [GOING_ON[0], GOING_ON[2], GOING_ON[-1]], ids=str)
def test_who_was_lost_in_a_sync_is_not_in_its_mean(strategy: dict[str, Any], pools: Pools) -> None:
    survive(pools, strategy, 3, {1: 5}, moment="sync", sync_at=5)


@pytest.mark.parametrize("moment", ["exchange", "between"])
@pytest.mark.parametrize("name", ["gossip", "sgp"])
def test_neighbours_that_have_come_further_than_others_go_on_together(
    name: str, moment: str, pools: Pools
) -> None:
    """On a ring, who is far from the lost rank is ahead when it hears of it."""
    strategy = {"name": name, "graph": "ring"}
    survive(pools, strategy, 6, {3: 6}, moment=moment, sync_at=12, compressor="int8")


def small_steps_without(*, config: Any, folder: str) -> list[float]:
    """Rank 2 is killed; rank 0 takes steps that bfloat16 rounds away.

    Returns:
        What a checkpoint has of the parameter in the end, and the parameter.
    """
    net = torch.nn.Linear(1, 1, bias=False).bfloat16()
    torch.nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with (
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),
        compressa.attach(net, optimizer, config) as strategy,
    ):
        for step in range(6):
            if step == 2 and dist.get_rank() == 2:
                die()
            net.weight.grad = torch.full_like(net.weight, -(2.0**-7) * (dist.get_rank() == 0))
            strategy.step()
            strategy.sync()
        strategy.save(folder)
        assert isinstance(strategy, Stale)
        return [float(strategy.worker.state.vectors["values/weight"]), float(net.weight)]


def test_those_who_go_on_keep_the_digits_that_16_bits_lack(pools: Pools, tmp_path: Path) -> None:
    config = settings(
        "none", strategy={"name": "central"}, engine={"recover": True}, exchange=TIMES
    )
    group, _store = with_a_store_apart(pools, 3)
    started = group.start(small_steps_without, config=config, folder=str(tmp_path))
    outcomes = group.collect(started, 60.0)[:2]
    group.end()
    for outcome in outcomes:
        assert outcome.ok, outcome.explain()
    saved, rounded = same([outcome.value for outcome in outcomes])
    assert saved == pytest.approx(1 + 2.0**-7 * (2 / 3 + 4 / 2), rel=1e-6)
    assert rounded == float(torch.tensor(saved).bfloat16())


def history_without(*, config: Any, culprit: int, meeting: int, steps: int) -> list[Any]:
    """Return parameters after each step; one rank is killed before it takes part in a meeting."""
    net, found = Regression(), []
    with (
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),
        compressa.attach(net, sgd(net), config) as strategy,
    ):
        submit = strategy.handle.submit

        def strike(*arguments: Any, **named: Any) -> Any:
            if dist.get_rank() == culprit and strategy.handle.next_step == meeting:
                time.sleep(1.0)  # all others wait in the meeting
                die()
            return submit(*arguments, **named)

        strategy.handle.submit = strike  # type: ignore[method-assign]
        for number in range(1, steps + 1):
            take_step(strategy, number)
            found.append(values_of(net))
    return found


def due_without(culprit: int, meeting: int, every: int, steps: int) -> list[dict[int, Values]]:
    """The parameters of each rank after each step, in NumPy; all average with all."""
    everyone, due = {number: Rank(number) for number in range(3)}, []
    for step in range(1, steps + 1):
        for rank in everyone.values():
            rank.step(step)
        if step % every == 0:
            if step == (meeting + 1) * every:
                del everyone[culprit]
            for name in everyone[0].values:
                mean = np.mean([rank.values[name] for rank in everyone.values()], axis=0)
                for rank in everyone.values():
                    rank.values[name] = mean
        due.append({n: dict(rank.values) for n, rank in everyone.items()})
    return due


@pytest.mark.parametrize("name", ["local_sgd", "gossip"])
def test_the_meeting_that_failed_is_that_of_the_survivors(name: str, pools: Pools) -> None:
    config = settings(
        "none",
        strategy={"name": name, "every": 3},
        engine={"recover": True},
        exchange=TIMES,
    )
    group = pools.fresh(3)
    started = group.start(history_without, config=config, culprit=1, meeting=2, steps=14)
    outcomes = group.collect(started, 60.0)
    for step, due in enumerate(due_without(1, 2, 3, 14)):
        for rank in (0, 2):
            assert outcomes[rank].ok, outcomes[rank].explain()
            for key, value in due[rank].items():
                got = outcomes[rank].value[step][key]
                np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5, err_msg=f"{step}")
    group.end()


def late(*, config: Any) -> None:
    """Rank 1 comes too late to a meeting."""
    net = Regression()
    with compressa.attach(net, sgd(net), config) as strategy:
        if dist.get_rank() == 1:
            time.sleep(4.0)
        take_step(strategy, 0)


@pytest.mark.parametrize("name", ["gossip", "local_sgd"])
def test_who_is_late_is_not_lost(name: str, pools: Pools) -> None:
    config = settings(
        "none",
        strategy={"name": name, "every": 1},
        engine={"recover": True},
        exchange={**TIMES, "deadline_s": 2.0},
    )
    group = pools.fresh(3)
    for text in group.refused(late, "Timeout", config=config):
        assert "rank 1" in text
    group.end()
