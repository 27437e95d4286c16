"""Watches: burstiness is peak over mean."""

from __future__ import annotations

import time
from itertools import accumulate, count
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.errors import BackendUnavailable
from compressa.testbed import Watch, burstiness

STEP_S = 0.0025
carried = st.lists(st.integers(0, 10_000), min_size=4, max_size=200)


def counter(steps: list[int], begin_s: float = 100.0) -> list[tuple[float, int]]:
    """Readings, four in a window, of a counter that grows by so much between them."""
    total = accumulate(steps, initial=0)
    return [(begin_s + i * STEP_S, count) for i, count in enumerate(total)]


@given(carried)
def test_burstiness_is_at_least_one_and_at_most_the_number_of_windows(steps: list[int]) -> None:
    windows = len(steps) // 4
    ratio = burstiness(counter(steps))
    if sum(steps[: 4 * windows]):
        assert 1 - 1e-6 <= ratio <= windows * (1 + 1e-6)
        sums = [sum(steps[4 * i : 4 * i + 4]) for i in range(windows)]
        assert ratio == pytest.approx(max(sums) * windows / sum(sums), rel=1e-3)


@given(carried, st.integers(2, 1000))
def test_burstiness_does_not_depend_on_the_rate(steps: list[int], factor: int) -> None:
    faster = counter([factor * step for step in steps])
    assert burstiness(faster) == pytest.approx(burstiness(counter(steps)))


def test_a_steady_stream_has_one_and_silence_none() -> None:
    assert burstiness(counter([100] * 40)) == pytest.approx(1.0)
    assert burstiness(counter([0] * 40)) == 0.0
    assert burstiness(counter([100, 0, 0, 0] * 10)) == pytest.approx(1.0)
    assert burstiness(counter([400, 0, 0, 0, 0, 0, 0, 0] * 10)) == pytest.approx(2.0)


def test_too_few_readings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"do not span 0\.01 s"):
        burstiness(counter([1, 1]))


def test_a_watch_that_cannot_read_says_so_when_it_ends() -> None:
    def fail() -> int:
        raise BackendUnavailable("no counters")

    with pytest.raises(BackendUnavailable, match="no counters"), Watch(fail):
        pass


def test_a_reading_that_was_interrupted_is_taken_again() -> None:
    counts = count()
    first = Event()

    def read() -> int:
        number = next(counts)
        if not number:
            time.sleep(0.2)  # as if something else computed meanwhile
        else:
            first.set()
        return number

    with Watch(read, every_s=0.05) as watch:
        assert first.wait(10)
    assert 0 not in [reading for _, reading in watch.readings]
    times_s = [time_s for time_s, _ in watch.readings]
    assert times_s == sorted(times_s)
