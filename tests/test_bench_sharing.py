"""What is worked out from measured jobs and rounds."""

from __future__ import annotations

import json

import pytest

from compressa.bench.network.incast import Incast, Pushes
from compressa.bench.network.job import Work
from compressa.bench.network.shared_link import SharedLink, Steps


def steps(*times_s: float) -> Steps:
    return Steps(0.5, times_s)


def test_a_jobs_usual_step_leaves_out_those_in_which_it_settled() -> None:
    assert steps(9.0, 9.0, *[1.0] * 8).usual_s == pytest.approx(1.0)


def test_slowdowns_are_multiples_of_the_step_alone() -> None:
    alone, slow = steps(*[1.0] * 10), steps(*[1.5] * 10)
    found = SharedLink(alone, (slow, slow), (alone, slow), (None, 1.0, 2.0))
    assert found.slowdowns(found.unstaggered) == pytest.approx([1.5, 1.5])
    assert found.slowdowns(found.staggered) == pytest.approx([1.0, 1.5])


def test_in_slots_nothing_sent_again_counts_as_once() -> None:
    at_once = Pushes((1.0, 1.0), 200, 40, 300_000, 1.5)
    in_slots = Pushes((1.0, 1.02), 0, 0, 50_000, 1.2)
    found = Incast(at_once, in_slots)
    assert found.fewer_retransmitted == 200
    assert found.smaller_peak == pytest.approx(6.0)
    assert found.slowdown == pytest.approx(1.01)


def test_work_is_told_as_it_is_meant() -> None:
    work = Work(1000, None, 5, {"schedule": {"share": {"name": "x", "at": "file:///tmp"}}})
    assert Work(**json.loads(work.text())) == work
