"""Jobs that share hosts, and nothing else: each trains as it does alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _failing import train_until_failure
from _ranks import Group, same, settings
from _training import train

pytestmark = pytest.mark.ranks


def side_by_side(groups: list[Group], function: str, **arguments: Any) -> list[list[Any]]:
    """Run the same job in several groups at the same time."""
    started = [(group, group.start(function, **arguments)) for group in groups]
    ended = [group.collect(processes, 90.0) for group, processes in started]
    for outcomes in ended:
        for outcome in outcomes:
            assert outcome.ok, outcome.explain()
    return [[outcome.value for outcome in outcomes] for outcomes in ended]


@pytest.mark.parametrize("schedule", ["", "paced", "in turns"])
def test_two_jobs_of_one_configuration_train_as_alone(
    schedule: str, fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    sections: dict[str, dict[str, Any]] = {
        "": {},
        "paced": {"pace_bits_per_s": 2e7, "policy": "priority"},
        "in turns": {"share": {"name": "uplink", "at": tmp_path.as_uri()}},
    }
    config = settings("topk", exchange={"connections": 3}, schedule=sections[schedule])
    groups = [fresh(2), fresh(2)]
    alone = groups[0].run(train, config=config)
    for results in side_by_side(groups, train, config=config, steps=4):
        assert same([r["parameters"] for r in results]) == alone[0]["parameters"]


def test_a_job_that_dies_leaves_the_other_alone(fresh: Callable[[int], Group]) -> None:
    config = settings("topk", schedule={"pace_bits_per_s": 2e7})
    doomed, other = fresh(2), fresh(2)
    alone = other.run(train, config=config, steps=6)
    processes = other.start(train, config=config, steps=6)
    fate = {"culprit": 1, "how": "kill", "at": 2}
    doomed.outcomes(train_until_failure, config=config, **fate)
    outcomes = other.collect(processes, 90.0)
    assert all(outcome.ok for outcome in outcomes)
    assert same([o.value["parameters"] for o in outcomes]) == alone[0]["parameters"]
