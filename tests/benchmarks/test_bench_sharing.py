"""What is worked out from measured jobs and rounds."""

from __future__ import annotations

import statistics

import pytest
from test_bench_schedule import pushes

from benchmarks.schedule.jobs import Steps, of_alone, waits_s


def steps(*times_s: float) -> Steps:
    return Steps(times_s, tuple(seconds / 2 for seconds in times_s))


def test_a_jobs_usual_step_leaves_out_those_in_which_it_settled() -> None:
    assert steps(9.0, 9.0, *[1.0] * 8).usual_s == pytest.approx(1.0)


def test_slowdowns_are_multiples_of_each_jobs_own_step_alone() -> None:
    alone, slow = steps(*[1.0] * 10), steps(*[2.0] * 10)
    uneven = steps(*[9.0] * 2, *[1.0] * 5, *[2.0] * 3)
    found = [
        of_alone(of, (uneven, slow), (alone, slow))
        for of in (statistics.fmean, statistics.median, max)
    ]
    assert found == [(1.375, 1.0), (1.0, 1.0), (2.0, 1.0)]
    assert of_alone(statistics.fmean, (alone, alone), (alone, slow)) == (1.0, 0.5)


def test_the_share_of_communication_is_that_of_the_whole_time() -> None:
    assert Steps((1.0, 3.0), (0.5, 0.5)).communication == pytest.approx(0.25)


def test_in_slots_nothing_sent_again_counts_as_once() -> None:
    found = pushes(retransmitted=(200, 0), peak_bytes=(300_000, 50_000))
    assert found.fewer_retransmitted == 200
    assert found.smaller_peak == pytest.approx(6.0)
    assert found.slowdown == pytest.approx(1.01)


def test_jittered_steps_compute_about_as_long_as_asked_and_alike_on_all_ranks() -> None:
    first, second = (list(waits_s(2.0, 400, 0.1, seed)) for seed in range(2))
    assert first == list(waits_s(2.0, 400, 0.1, 0)) != second
    assert len(first) == 400
    assert 1.8 <= min(first) < 1.82 < 2.18 < max(first) <= 2.2
    assert sum(first) / 400 == pytest.approx(2.0, rel=0.02)


def test_steps_without_jitter_compute_for_equally_long() -> None:
    assert list(waits_s(0.5, 4, 0.0, 1)) == [0.5] * 4
