"""What is worked out from measured jobs and rounds."""

from __future__ import annotations

import json

import pytest

from compressa.bench.network.incast import Incast, Pushes
from compressa.bench.network.job import Work
from compressa.bench.network.shared_link import SharedLink, Slowdown, Steps


def steps(*times_s: float) -> Steps:
    return Steps(0.5, times_s, tuple(seconds / 2 for seconds in times_s))


def test_a_jobs_usual_step_leaves_out_those_in_which_it_settled() -> None:
    assert steps(9.0, 9.0, *[1.0] * 8).usual_s == pytest.approx(1.0)


def test_slowdowns_are_multiples_of_each_jobs_own_step_alone() -> None:
    alone, slow = steps(*[1.0] * 10), steps(*[2.0] * 10)
    uneven = steps(*[9.0] * 2, *[1.0] * 5, *[2.0] * 3)
    found = SharedLink((alone, slow), (uneven, slow), (alone, alone), (None, 1.0, 2.0))
    assert found.slowdowns(found.unstaggered) == [Slowdown(1.375, 1.0, 2.0), Slowdown(1, 1, 1)]
    assert [job.mean for job in found.slowdowns(found.staggered)] == [1.0, 0.5]


def test_the_share_of_communication_is_that_of_the_whole_time() -> None:
    assert Steps(0.5, (1.0, 3.0), (0.5, 0.5)).communication == pytest.approx(0.25)


def test_in_slots_nothing_sent_again_counts_as_once() -> None:
    at_once = Pushes((1.0, 1.0), 200, 40, 300_000, 1.5)
    in_slots = Pushes((1.0, 1.02), 0, 0, 50_000, 1.2)
    found = Incast(at_once, in_slots)
    assert found.fewer_retransmitted == 200
    assert found.smaller_peak == pytest.approx(6.0)
    assert found.slowdown == pytest.approx(1.01)


SHARING = {"schedule": {"share": {"name": "x", "at": "file:///tmp"}}}


def test_work_is_told_as_it_is_meant() -> None:
    work = Work(1000, None, 0.1, 1, 5, SHARING)
    assert Work(**json.loads(work.text())) == work


def test_jittered_steps_compute_about_as_long_as_asked_and_alike_on_all_ranks() -> None:
    first, second = (Work(1000, None, 0.1, seed, 300, {}) for seed in range(2))
    waits_s = list(first.waits_s(2.0))
    assert waits_s == list(first.waits_s(2.0)) != list(second.waits_s(2.0))
    assert len(waits_s) == 400
    assert 1.8 <= min(waits_s) < 1.82 < 2.18 < max(waits_s) <= 2.2
    assert sum(waits_s) / 400 == pytest.approx(2.0, rel=0.02)


def test_steps_without_jitter_compute_for_equally_long() -> None:
    assert list(Work(1000, None, 0.0, 1, 3, {}).waits_s(0.5)) == [0.5] * 4
