"""A child that a rank has forked neither hides the rank's death nor ends its connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _ranks import Group, settings
from _transports import ON_HOST

pytestmark = pytest.mark.ranks

JOB = "_rank_jobs_frames.train_beside_a_child"


@pytest.mark.parametrize("transport", ON_HOST)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_killed_rank_with_a_child_is_noticed_at_once(
    transport: str, culprit: int, fresh: Callable[[int], Group]
) -> None:
    group = fresh(3)
    config = settings("int8", exchange={"transport": transport})  # 15 s of silence, 30 to the end
    outcomes = group.collect(group.start(JOB, config=config, culprit=culprit), 60.0)
    for outcome in outcomes:
        if outcome.rank != culprit:
            assert outcome.ok, outcome.explain()
            assert outcome.value["type"] == "PeerLost"
            assert outcome.value["lost"] == culprit
            assert outcome.value["seconds"] < 5.0


@pytest.mark.parametrize("transport", ON_HOST)
def test_a_child_that_ends_says_no_goodbye(transport: str, two: Group) -> None:
    config = settings("int8", exchange={"transport": transport})
    found = two.run(JOB, config=config, culprit=1, how="leave")
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] == found[1]["parameters"]
