"""bounded, async and central on real ranks: oracles, bits, faults, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _attached import attached, gone_back, history, loaded_on_one_rank, lost, resumed, saved_apart
from _averaging_oracle import trained
from _buffers import masked, running_means, small_steps
from _ranks import Group, Pools, same, settings
from _served import left_early, served, trains_not, uneven

pytestmark = pytest.mark.ranks

SYNCHRONOUS: list[dict[str, Any]] = [
    {"name": "bounded", "staleness": 0},
    {"name": "bounded", "staleness": 0, "servers": 1},
    {"name": "central"},
]
APART: list[dict[str, Any]] = [
    {"name": "async"},
    {"name": "async", "weighting": "staleness"},
    {"name": "bounded", "staleness": 2},
    {"name": "bounded", "staleness": 3, "servers": 1},
]


def named(strategy: dict[str, Any]) -> str:
    return "-".join(map(str, strategy.values()))


@pytest.mark.parametrize("strategy", SYNCHRONOUS, ids=named)
def test_without_staleness_ranks_take_the_mean_step(strategy: dict[str, Any], pools: Pools) -> None:
    found = pools.get(3).run(history, config={"strategy": strategy}, steps=6)
    due = trained({"name": "local_sgd", "every": 1}, 3, 6)
    for rank, steps in enumerate(found):
        for own, oracle in zip(steps, due, strict=False):
            for name, value in own.items():
                np.testing.assert_allclose(value, oracle[rank][name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("compressor", ["none", "int8", "onebit", "topk", "qsgd"])
def test_without_staleness_replicas_and_resumed_runs_have_the_same_bits(
    compressor: str, two: Group, tmp_path: Path
) -> None:
    ends = []
    for number, strategy in enumerate(SYNCHRONOUS):
        config = settings(compressor, strategy=strategy, dense_below={"elems": 4})
        folder = str(tmp_path / str(number))
        found = two.run(resumed, config=config, folder=folder, steps=5, models=True)
        for (straight, owed), (again, owed_again) in found:
            assert straight == again
            assert owed == owed_again
        ends.append(same([values for (values, _), _ in found]))
    same(ends)  # however many serve


@pytest.mark.parametrize("compressor", ["none", "int8", {"name": "topk", "density": 0.5}])
@pytest.mark.parametrize("strategy", APART, ids=named)
def test_ranks_that_do_not_wait_learn_and_agree_in_the_end(
    strategy: dict[str, Any], compressor: str | dict[str, Any], pools: Pools
) -> None:
    config = settings(compressor, strategy=strategy, dense_below={"elems": 4})
    found = pools.get(3).run(served, config=config, steps=100, slow_s=0.002, rate=0.01)
    same([values for _, _, values, _, _ in found])
    for first, last, *_ in found:
        assert last < 0.5 * first


def test_ranks_may_serve_only(pools: Pools) -> None:
    strategy = {"name": "bounded", "staleness": 1, "servers": 1, "dedicated": True}
    config = settings("int8", strategy=strategy)
    first, second, server = pools.get(3).run(served, config=config, steps=40)
    same([first[2], second[2]])
    assert first[1] < 0.75 * first[0]
    assert server == []
    said = pools.get(3).run(trains_not, config=config)
    assert "this rank trains; call step" in same([text for (text,) in said[:2]])
    assert all("call strategy.serve()" in text for text in said[2])


def test_only_a_bound_makes_the_quick_wait_for_the_slow(pools: Pools) -> None:
    def seconds(strategy: dict[str, Any]) -> list[float]:
        # Long enough that a busy machine, which slows the quick, does not hide who waits.
        found = pools.get(3).run(served, config={"strategy": strategy}, steps=20, slow_s=0.15)
        return [each[-1] for each in found]

    free = seconds({"name": "async"})
    bound = seconds({"name": "bounded", "staleness": 2})
    assert max(free[1:]) < 0.5 * free[0]
    assert min(bound[1:]) > 0.7 * bound[0]
    backed = seconds({"name": "bounded", "staleness": 0, "backup_workers": 1})
    assert max(backed[1:]) < 0.8 * 20 * 0.15


def test_who_closes_without_sync_leaves_the_others_to_train(pools: Pools) -> None:
    config = settings("int8", strategy={"name": "bounded", "staleness": 1})
    found = pools.get(3).run(served, config=config, steps=20, leave=True)
    assert all(last < first for first, last, *_ in found)


def test_statistics_are_shared(two: Group) -> None:
    for strategy in ({"name": "bounded", "staleness": 0}, {"name": "async", "weighting": "sum"}):
        found = two.run(running_means, config={"strategy": strategy}, steps=8)
        same([after for _, after in found])
        assert np.isfinite(found[0][1]).all()
        assert np.abs(found[0][1]).max() > 0


def test_what_is_apart_can_not_be_saved(two: Group, tmp_path: Path) -> None:
    config = {"strategy": {"name": "bounded", "staleness": 2}}
    said = two.refused(saved_apart, "StateError", config=config, folder=str(tmp_path))
    assert "call strategy.sync() first" in same(said)


@pytest.mark.parametrize("strategy", [SYNCHRONOUS[0], SYNCHRONOUS[2], *APART[:3]], ids=named)
def test_a_lost_rank_is_named(strategy: dict[str, Any], pools: Pools) -> None:
    group = pools.fresh(3)
    config = settings("none", strategy=strategy, exchange={"silence_s": 5.0})
    outcomes = group.outcomes(lost, config=config, step=4, pause_s=0.02)
    group.end()
    for outcome in outcomes:
        if outcome.rank != 1:
            assert outcome.value is not None, outcome.explain()
            assert outcome.value[0] == 1


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        (
            {"strategy": {"name": "async", "delay_compensation": 0.04}},
            "ConfigError",
            "only SGD without momentum",
        ),
        (
            {"strategy": {"name": "bounded", "staleness": 0, "backup_workers": 2}},
            "ConfigError",
            "only 2 workers",
        ),
        ({"strategy": {"name": "async", "servers": 3}}, "ConfigError", "servers = 3"),
        (
            {"strategy": {"name": "async", "servers": 2, "dedicated": True}},
            "ConfigError",
            "none a worker",
        ),
        (
            {"strategy": "async", "schedule": {"server_bits_per_s": 1e9}},
            "ConfigError",
            "gives slots to workers that push together",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    config: dict[str, Any], error: str, said: str, two: Group
) -> None:
    assert said in same(two.refused(attached, error, config=config))


def test_delays_are_compensated(two: Group) -> None:
    config = {"strategy": {"name": "async", "delay_compensation": 0.04}}
    two.run(attached, config=config, kind="plain", rate=0.01)


WAITLESS = [*APART[:3], SYNCHRONOUS[0], {"name": "ad_psgd"}]


@pytest.mark.parametrize("strategy", WAITLESS, ids=named)
def test_a_mask_of_infinities_stays_as_it_is(strategy: dict[str, Any], two: Group) -> None:
    assert all(two.run(masked, config={"strategy": strategy}))


@pytest.mark.parametrize("strategy", [SYNCHRONOUS[0], {"name": "ad_psgd"}], ids=named)
@pytest.mark.parametrize(("dtype", "steps"), [("bfloat16", 64), ("float16", 8)])
def test_small_steps_of_16_bits_add_up(
    strategy: dict[str, Any], dtype: str, steps: int, two: Group
) -> None:
    """Each is half of what the format can tell from 1, or less."""
    found = two.run(small_steps, config={"strategy": strategy}, dtype=dtype, steps=steps)
    assert same(found)[0] == pytest.approx(1 + steps * 2.0**-7 / 2, rel=0.02)


@pytest.mark.parametrize("strategy", WAITLESS[:3] + WAITLESS[4:], ids=named)
def test_ranks_may_take_different_numbers_of_steps_between_syncs(
    strategy: dict[str, Any], two: Group
) -> None:
    same(two.run(uneven, config={"strategy": strategy}))


def test_what_a_rank_did_last_is_sent_before_it_leaves(pools: Pools) -> None:
    for strategy in (
        {"name": "async", "weighting": "sum"},
        {"name": "bounded", "weighting": "sum"},
    ):
        assert pools.get(3).run(left_early, config={"strategy": strategy})[0] == [10.0]


@pytest.mark.parametrize("strategy", [SYNCHRONOUS[0], APART[2], {"name": "ad_psgd"}], ids=named)
def test_a_run_may_go_back_to_a_checkpoint(
    strategy: dict[str, Any], two: Group, tmp_path: Path
) -> None:
    config = settings("int8", strategy=strategy)
    for first, again in two.run(gone_back, config=config, folder=str(tmp_path / "one")):
        assert first == again or strategy != SYNCHRONOUS[0]
    said = two.refused(loaded_on_one_rank, "StateError", config=config, folder=str(tmp_path / "b"))
    assert "load the model's state on all of them first" in same(said)


def test_an_optimizer_that_communicates_is_refused(two: Group) -> None:
    for name in ("hook", "local_sgd", "async"):
        config = {"strategy": name}
        said = two.refused(attached, "StateError", config=config, kind="compressed")
        assert "use it alone, without attach" in same(said)
