"""ad_psgd on real ranks; see `test_pairs` for what is conserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _attached import attached, lost, saved_and_read, saved_apart
from _buffers import running_means
from _ranks import Group, Pools, same, settings
from _served import served

pytestmark = pytest.mark.ranks

AD_PSGD: dict[str, Any] = {"name": "ad_psgd"}


@pytest.mark.parametrize("compressor", ["none", "int8", {"name": "topk", "density": 0.5}])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_learn_and_agree_in_the_end(
    size: int, compressor: str | dict[str, Any], pools: Pools
) -> None:
    config = settings(compressor, strategy=AD_PSGD, dense_below={"elems": 4})
    found = pools.get(size).run(served, config=config, steps=100, slow_s=0.002, rate=0.01)
    same([values for _, _, values, _, _ in found])
    for first, last, _, averages, _ in found:
        assert last < 0.5 * first
        assert averages > 0


def test_the_quick_do_not_wait_for_the_slow(pools: Pools) -> None:
    for every in (1, 5):
        strategy = {**AD_PSGD, "every": every}
        found = pools.get(3).run(served, config={"strategy": strategy}, steps=20, slow_s=0.05)
        seconds = [each[-1] for each in found]
        assert max(seconds[1:]) < 0.5 * seconds[0]


def test_statistics_are_averaged(two: Group) -> None:
    same([after for _, after in two.run(running_means, config={"strategy": AD_PSGD}, steps=8)])


def test_what_all_hold_is_saved(two: Group, tmp_path: Path) -> None:
    config = settings("int8", strategy=AD_PSGD)
    for saved, read, after in two.run(saved_and_read, config=config, folder=str(tmp_path)):
        assert saved == read
        assert after != read
    said = two.refused(saved_apart, "StateError", config=config, folder=str(tmp_path))
    assert "call strategy.sync() first" in same(said)


def test_a_lost_rank_is_named(pools: Pools) -> None:
    group = pools.fresh(3)
    config = settings("none", strategy=AD_PSGD, exchange={"silence_s": 5.0})
    outcomes = group.outcomes(lost, config=config, step=4, pause_s=0.02)
    group.end()
    for outcome in outcomes:
        if outcome.rank != 1:
            assert outcome.value is not None, outcome.explain()
            assert outcome.value[0] == 1


def test_a_transport_that_needs_all_ranks_is_refused(two: Group) -> None:
    config = settings("none", strategy=AD_PSGD, exchange={"transport": "nccl"})
    assert "two ranks meet alone" in same(two.refused(attached, "ConfigError", config=config))
    said = two.refused(attached, "ConfigError", config={"strategy": AD_PSGD}, kind="differs")
    assert all("nonsense" in text for text in said)
