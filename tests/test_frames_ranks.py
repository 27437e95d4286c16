"""No wrong byte passes in silence: what a network changes ends the step on every rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from _ranks import Group, settings

pytestmark = pytest.mark.ranks

JOB = "_rank_jobs_frames.train_over_a_bad_link"
WAY = "from rank 0 to rank 1 over tcp"


def check_refused(found: list[dict[str, Any]]) -> None:
    for seen in found:
        assert seen["type"] == "PayloadError", found
        assert WAY in seen["message"], found
        assert seen["step"] in (1, 2), found  # a rank may be a step behind what comes
        assert seen["seconds"] < 10.0, found


@pytest.mark.parametrize("compressor", ["int8", "topk", "powersgd", "none"])
def test_a_flipped_bit_ends_the_step_on_both_ranks(compressor: str, two: Group) -> None:
    check_refused(two.run(JOB, config=settings(compressor), how="flip"))


@pytest.mark.parametrize("connections", [1, 3])
def test_half_a_frame_inverted_ends_the_step_on_both_ranks(connections: int, two: Group) -> None:
    config = settings("none", exchange={"connections": connections})
    check_refused(two.run(JOB, config=config, how="half"))


def test_a_proxy_that_changes_nothing_is_not_noticed(two: Group) -> None:
    found = two.run(JOB, config=settings("int8"), how="flip", at=99)
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] == found[1]["parameters"]


@pytest.mark.parametrize("culprits", [[1], [0], [0, 1, 2]])
def test_too_few_files_are_told_to_all_ranks_with_the_fix(
    culprits: list[int], fresh: Callable[[int], Group]
) -> None:
    job = "_rank_jobs_frames.register_with_few_files"
    config = settings("int8", exchange={"deadline_s": 20.0})
    for seen in fresh(3).run(job, config=config, culprits=culprits, spare=16):
        assert seen["type"] == "TransportError", seen
        assert re.search(
            r"this process may open \d+ files, has \d+ and needs 18 more", seen["message"]
        )
        assert "ulimit -n" in seen["message"]
        assert seen["seconds"] < 10.0


def test_as_many_files_as_are_said_to_be_needed_are_enough(fresh: Callable[[int], Group]) -> None:
    job = "_rank_jobs_frames.register_with_few_files"
    found = fresh(3).run(job, config=settings("int8"), culprits=[0, 1, 2], spare=18)
    assert [seen["type"] for seen in found] == [""] * 3
