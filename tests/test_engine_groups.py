"""Groups of compressa's own stand in nobody's way, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _ranks import Group

pytestmark = pytest.mark.ranks


def assert_no_more(many: list[int], few: list[int]) -> None:
    """Threads and files after many cycles, and after few; some of torch's own may have ended."""
    assert all(later <= sooner for later, sooner in zip(many, few, strict=True)), (few, many)


@pytest.mark.parametrize("first", [True, False], ids=["among them", "before them"])
def test_a_part_registers_and_all_make_groups(first: bool, fresh: Callable[[int], Group]) -> None:
    results = fresh(4).run("_rank_jobs_groups.use_beside", part=[1, 2], first=first)
    assert results == [[4.0] * (2 + first)] * 4


@pytest.mark.parametrize("fails", [False, True], ids=["", "failing"])
def test_a_registration_on_a_part_of_the_ranks_leaves_nothing(
    fails: bool, fresh: Callable[[int], Group]
) -> None:
    job = "_rank_jobs_groups.open_and_close"
    first, second, absent = fresh(3).run(job, part=[0, 1], cycles=[2, 6], fails=fails)
    assert absent is None
    for few, many in (first, second):
        assert_no_more(many, few)


def test_a_reform_leaves_nothing_of_the_one_before(fresh: Callable[[int], Group]) -> None:
    for few, many in fresh(2).run("_rank_jobs_groups.reform_often", cycles=[2, 6]):
        assert_no_more(many, few)


@pytest.mark.parametrize("ranks", [[], [1], [0, 0], [0, 2]], ids=str)
def test_ranks_that_can_not_go_on_are_refused(
    ranks: list[int], fresh: Callable[[int], Group]
) -> None:
    outcome = fresh(2).outcomes("_rank_jobs_groups.reform_with", among=ranks)[0]
    assert outcome.error is not None
    assert outcome.error["type"] == "ConfigError"
    assert "give different ranks of the default group" in outcome.error["message"]
