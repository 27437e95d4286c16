"""Deferral: the way that takes less time is found, kept, and looked for again."""

from __future__ import annotations

import math
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.engine.measuring.stats import Overlap
from compressa.engine.units.deferral import CHOICE_BYTES, Deferral, packed, unpacked, usual_s

SECONDS = st.floats(1e-6, 1e3)


def rounds(
    deferral: Deferral, now: Overlap, deferred_s: float, at_once_s: float, count: int
) -> list[Overlap]:
    """What is in force after each of some rounds, in a world where steps take so long."""
    result = []
    for _ in range(count):
        now = deferral.next(now, deferred_s if now.deferring else at_once_s)
        result.append(now)
    return result


@given(SECONDS, st.floats(0.1, 0.97))
def test_the_faster_way_is_kept_and_the_other_tried_ever_more_rarely(
    slow_s: float, factor: float
) -> None:
    for deferred_s, at_once_s in ((slow_s, factor * slow_s), (factor * slow_s, slow_s)):
        done = rounds(Deferral(), Overlap(deferring=True), deferred_s, at_once_s, 1000)
        right = deferred_s < at_once_s
        assert [each.measuring for each in done[:7]] == [False, *[True] * 5, False]
        assert [each.deferring for each in done[:6]] == [True, False, True, False, True, False]
        settled = done[6:]
        assert all(each.deferring is (right != each.measuring) for each in settled)
        assert sum(each.measuring for each in settled) <= 20
        assert settled[-1].deferred_s == deferred_s
        assert settled[-1].at_once_s == at_once_s


@given(SECONDS, st.floats(0.98, 1.0), st.booleans())
def test_nothing_is_deferred_that_takes_as_long(
    step_s: float, factor: float, deferring: bool
) -> None:
    deferred_s = max(factor * step_s, math.nextafter(0.98 * step_s, math.inf))
    done = rounds(Deferral(), Overlap(deferring), deferred_s, step_s, 20)
    assert all(each.deferring is each.measuring for each in done[6:])


@given(st.lists(SECONDS, min_size=1), st.floats(4, 1e3))
def test_a_round_is_as_its_steps_are_without_pauses(steps_s: list[float], pause: float) -> None:
    assert min(steps_s) <= usual_s(steps_s) * (1 + 1e-12)
    assert usual_s(steps_s) <= 3 * median(steps_s)
    even = [1.0] * 4
    assert usual_s([*even, pause]) == 1


@given(SECONDS, st.integers(0, 300), st.floats(1.4, 10.0))
def test_when_steps_have_taken_another_time_twice_the_other_way_is_tried(
    fast_s: float, quiet: int, factor: float
) -> None:
    deferral = Deferral()
    now = rounds(deferral, Overlap(deferring=True), fast_s, 2 * fast_s, 7 + quiet)[-1]
    if now.measuring:
        now = deferral.next(now, 2 * fast_s)
    assert now.deferring
    # The link has become slower, and the other way is faster now.
    done = rounds(deferral, now, factor * fast_s, 0.5 * factor * fast_s, 11)
    assert any(each.measuring for each in done[:2])
    settled = [each.deferring for each in done[-3:] if not each.measuring]
    assert settled
    assert not any(settled)


@pytest.mark.parametrize("deferred_s", [0.8, 1.2])
@pytest.mark.parametrize(("noise", "most"), [(0.1, 0.15), (0.2, 0.25)])
def test_on_a_machine_that_others_use_the_faster_way_is_mostly_in_force(
    deferred_s: float, noise: float, most: float
) -> None:
    random = Random(1)
    wrong = 0
    for _ in range(50):
        deferral, now = Deferral(), Overlap(deferring=True)
        for _ in range(200):
            step_s = deferred_s if now.deferring else 1.0
            now = deferral.next(now, step_s * math.exp(random.gauss(0, noise)))
            wrong += now.deferring is not (deferred_s < 1)
    assert wrong <= most * 50 * 200


@given(st.builds(Overlap, st.booleans(), st.booleans(), st.none() | SECONDS, st.none() | SECONDS))
def test_a_choice_arrives_as_it_was_sent(choice: Overlap) -> None:
    data = packed(choice)
    assert len(data) == CHOICE_BYTES
    assert unpacked(data) == choice
    with pytest.raises(ValueError, match="choice"):
        unpacked(data[:-1])
