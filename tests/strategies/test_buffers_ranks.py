"""Buffers stay what they are, and digits that 16 bits lack are kept, under all strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _buffers import (
    counted,
    least_variance,
    left_by_an_error,
    masked,
    small_steps,
    small_steps_saved,
    strided,
)
from _ranks import Group, Pools, same

pytestmark = pytest.mark.ranks

MEETING: list[dict[str, Any]] = [
    {"name": "local_sgd", "every": 3},
    {"name": "diloco", "every": 8, "overlap_steps": 6},
    {"name": "diloco", "every": 8, "fragments": 2, "overlap_steps": 3, "mixing": 0.5},
]
APART: list[dict[str, Any]] = [
    {"name": "async"},
    {"name": "async", "weighting": "sum"},
    {"name": "async", "weighting": "staleness"},
    {"name": "bounded", "staleness": 2},
    {"name": "bounded", "staleness": 3, "servers": 1},
    {"name": "bounded", "staleness": 0},
    {"name": "ad_psgd"},
]


def named(strategy: dict[str, Any]) -> str:
    return "-".join(map(str, strategy.values()))


@pytest.mark.parametrize("strategy", [*MEETING, {"name": "gossip"}, {"name": "sgp"}], ids=named)
def test_constants_stay_as_they_are(strategy: dict[str, Any], pools: Pools) -> None:
    """Infinities, and the least number of float16."""
    assert all(pools.get(3).run(masked, config={"strategy": strategy}))


@pytest.mark.parametrize("strategy", [*MEETING, *APART], ids=named)
def test_a_variance_is_never_negative(strategy: dict[str, Any], pools: Pools) -> None:
    """Though ranks take over what others had some steps ago."""
    found = pools.get(4).run(least_variance, config={"strategy": strategy}, steps=40)
    assert min(found) > 0


@pytest.mark.parametrize("strategy", MEETING, ids=named)
def test_a_buffer_that_counts_counts_on(strategy: dict[str, Any], two: Group) -> None:
    assert same(two.run(counted, config={"strategy": strategy}, steps=20)) == [20.0]


@pytest.mark.parametrize(
    "strategy", [{"name": "central"}, {"name": "bounded", "staleness": 0}, {"name": "ad_psgd"}]
)
def test_a_checkpoint_keeps_the_digits_of_16_bit_parameters(
    strategy: dict[str, Any], two: Group, tmp_path: Path
) -> None:
    config = {"strategy": strategy}
    through, again = same(two.run(small_steps_saved, config=config, folder=str(tmp_path), steps=6))
    assert through == again == 1 + 6 * 2.0**-8


def test_small_means_of_16_bits_add_up(pools: Pools) -> None:
    """Each is a third of what bfloat16 can tell from 1."""
    config = {"strategy": {"name": "local_sgd", "every": 1}}
    found = pools.get(3).run(small_steps, config=config, dtype="bfloat16", steps=64)
    assert same(found)[0] == pytest.approx(1 + 64 * 2.0**-7 / 3, rel=0.01)


@pytest.mark.parametrize("name", ["async", "bounded", "ad_psgd", "central", "local_sgd", "hook"])
def test_what_is_left_by_an_error_lets_the_optimizer_go(name: str, two: Group) -> None:
    same(two.run(left_by_an_error, config={"strategy": name}))


@pytest.mark.parametrize("name", ["hook", "overlapped", "local_sgd", "async"])
def test_one_element_out_of_a_row_of_others_trains(name: str, two: Group) -> None:
    (found,) = same(two.run(strided, config={"strategy": name}))
    assert found != 1.0
