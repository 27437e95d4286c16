"""No wrong byte passes in silence: what a network changes ends the step on every rank."""

from __future__ import annotations

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
