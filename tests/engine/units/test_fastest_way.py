"""FastestWay: the way that takes least time is found, kept, and the others looked for again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise, permutations
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.engine.measuring.stats import WAYS, Overlap, Way
from compressa.engine.units.fastest_way import CHOICE_BYTES, FastestWay, packed, unpacked, usual_s

SECONDS = st.floats(1e-6, 1e3)
TWO: tuple[Way, ...] = ("deferred", "at once")


def rounds(
    fastest: FastestWay, now: Overlap, steps_s: Mapping[Way, float], count: int
) -> list[Overlap]:
    """What is in force after each of some rounds, in a world where steps take so long."""
    result = []
    for _ in range(count):
        now = fastest.next(now, steps_s[now.way])
        result.append(now)
    return result


@given(SECONDS, st.floats(0.1, 0.97))
def test_the_faster_of_two_is_kept_and_the_other_tried_ever_more_rarely(
    slow_s: float, factor: float
) -> None:
    for right, wrong in permutations(TWO):
        steps_s = {right: factor * slow_s, wrong: slow_s}
        done = rounds(FastestWay(TWO), Overlap("deferred"), steps_s, 1000)
        assert [each.measuring for each in done[:7]] == [False, *[True] * 5, False]
        assert [each.way for each in done[:6]] == [*TWO, *TWO, *TWO]
        settled = done[6:]
        assert all((each.way == right) is not each.measuring for each in settled)
        assert sum(each.measuring for each in settled) <= 20
        told = dict(zip(WAYS, settled[-1].steps_s, strict=True))
        assert told[right] == steps_s[right]
        assert told[wrong] == pytest.approx(steps_s[wrong], rel=1e-12)  # by what it takes of that


@given(SECONDS, st.permutations([0.5, 0.8, 1.0]))
def test_the_fastest_of_three_is_kept_and_the_others_are_tried_in_turn(
    slow_s: float, factors: list[float]
) -> None:
    steps_s = {way: factor * slow_s for way, factor in zip(WAYS, factors, strict=True)}
    right = min(WAYS, key=lambda way: steps_s[way])
    done = rounds(FastestWay(WAYS), Overlap("deferred"), steps_s, 1000)
    assert [each.way for each in done[:9]] == [*WAYS, *WAYS, *WAYS]
    settled = done[9:]
    assert all((each.way == right) is not each.measuring for each in settled)
    tried = [each.way for each in settled if each.measuring]
    assert all(2 <= tried.count(way) <= 20 for way in steps_s if way != right)
    assert all(a != b for a, b in pairwise(tried))
    assert settled[-1].steps_s == pytest.approx(tuple(steps_s.values()), rel=1e-12)
    assert steps_s[right] in settled[-1].steps_s


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_what_is_told_says_why_a_way_is_in_force(seed: int, noise: float) -> None:
    """However much steps' times differ: others' are told as they were beside those of the way."""
    random, fastest, now = Random(seed), FastestWay(WAYS), Overlap("deferred")
    for _ in range(100):
        now = fastest.next(now, math.exp(random.gauss(0, noise)))
        if not now.measuring and None not in now.steps_s:
            due = dict(zip(WAYS, now.steps_s, strict=True))
            due["at once"] *= 0.98
            assert due[now.way] <= min(due.values()) * (1 + 1e-9)


@given(SECONDS, st.floats(0.98, 1.0), st.sampled_from(WAYS))
def test_what_takes_as_long_is_done_in_the_plain_way(
    step_s: float, factor: float, first: Way
) -> None:
    other_s = max(factor * step_s, math.nextafter(0.98 * step_s, math.inf))
    steps_s: dict[Way, float] = {"deferred": other_s, "at once": step_s, "together": other_s}
    done = rounds(FastestWay(WAYS), Overlap(first), steps_s, 20)
    assert all((each.way == "at once") is not each.measuring for each in done[9:])


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
    fastest, slow_s = FastestWay(WAYS), 2 * fast_s
    before: dict[Way, float] = {"deferred": fast_s, "at once": slow_s, "together": slow_s}
    now = rounds(fastest, Overlap("deferred"), before, 10 + quiet)[-1]
    while now.measuring:
        now = fastest.next(now, before[now.way])
    assert now.way == "deferred"
    # The link has become slower, and another way is faster now.
    slow_s = factor * fast_s
    after: dict[Way, float] = {"deferred": slow_s, "at once": slow_s, "together": 0.5 * slow_s}
    done = rounds(fastest, now, after, 16)
    assert any(each.measuring for each in done[:2])
    settled = {each.way for each in done[-4:] if not each.measuring}
    assert settled == {"together"}


@pytest.mark.parametrize("deferred_s", [0.8, 1.2])
@pytest.mark.parametrize(("noise", "most"), [(0.1, 0.15), (0.2, 0.25)])
def test_on_a_machine_that_others_use_the_faster_way_is_mostly_in_force(
    deferred_s: float, noise: float, most: float
) -> None:
    random = Random(1)
    wrong = 0
    for _ in range(50):
        fastest, now = FastestWay(TWO), Overlap("deferred")
        for _ in range(200):
            step_s = deferred_s if now.deferring else 1.0
            now = fastest.next(now, step_s * math.exp(random.gauss(0, noise)))
            wrong += now.deferring is not (deferred_s < 1)
    assert wrong <= most * 50 * 200


@pytest.mark.parametrize("deferred_s", [0.8, 1.2])
def test_a_drift_of_the_machines_own_speed_does_not_mislead(deferred_s: float) -> None:
    random = Random(1)
    lasting = math.exp(-1 / 30)  # of a drift, from round to round
    wrong = 0
    for _ in range(50):
        fastest, now, drift = FastestWay(TWO), Overlap("deferred"), random.gauss(0, 0.2)
        for _ in range(200):
            step_s = deferred_s if now.deferring else 1.0
            drift = lasting * drift + math.sqrt(1 - lasting**2) * random.gauss(0, 0.2)
            now = fastest.next(now, step_s * math.exp(drift + random.gauss(0, 0.05)))
            wrong += now.deferring is not (deferred_s < 1)
    assert wrong <= 0.1 * 50 * 200


def through(fastest: FastestWay, cycles: list[Mapping[Way, float]]) -> Overlap:
    """Go through cycles of rounds whose steps take so long; return what is in force then."""
    now = Overlap("at once", measuring=True)
    for cycle in cycles:
        for _ in cycle:
            now = fastest.next(now, cycle[now.way])
    return now


def begun() -> FastestWay:
    """Its first steps are over."""
    fastest = FastestWay(TWO)
    fastest.next(Overlap("at once"), 1.0)
    return fastest


def test_a_lead_within_its_error_is_measured_again_and_nine_times_at_most() -> None:
    shorter: dict[Way, float] = {"deferred": 0.95, "at once": 1.0}
    longer: dict[Way, float] = {"deferred": 1.3, "at once": 1.0}
    for alike, way in [(shorter, "deferred"), (longer, "at once")]:
        clear = through(begun(), [alike] * 3)
        assert (clear.way, clear.measuring) == (way, False)
    assert through(begun(), [shorter, shorter, longer]).measuring
    settled = through(begun(), [shorter, shorter, *[longer] * 3])
    assert (settled.way, settled.measuring) == ("at once", False)
    for count, unclear in [(5, True), (7, True), (9, False)]:
        mixed = [(shorter, longer)[number % 2] for number in range(count)]
        assert through(begun(), mixed).measuring is unclear


@pytest.mark.parametrize("against", [1, 2])
def test_what_was_known_is_forgotten_if_two_cycles_after_a_change_say_so(against: int) -> None:
    before: dict[Way, float] = {"deferred": 2.0, "at once": 1.0}
    after: dict[Way, float] = {"deferred": 1.5, "at once": 1.8}
    fastest = FastestWay(TWO)
    now = rounds(fastest, Overlap("at once"), before, 300)[-1]
    while now.measuring:
        now = fastest.next(now, before[now.way])
    done = rounds(fastest, now, after, 2 + 2 * (against - 1))
    assert done[1].measuring  # two rounds of another time, and a cycle begins
    done += rounds(fastest, done[-1], after if against == 2 else before, 8)
    settled = [each for each in done[-2:] if not each.measuring]
    assert {each.way for each in settled} == {"deferred" if against == 2 else "at once"}


def test_on_a_machine_of_two_speeds_steps_lose_little_to_what_is_tried() -> None:
    """As four ranks on two cores were measured: 8 % of noise, a drift of 5, a jump of 25."""
    random, lasting = Random(1), math.exp(-1 / 10)
    lost: list[float] = []
    for factors in permutations([1.0, 1.09, 1.18]):
        for _ in range(20):
            fastest, now, drift, level = FastestWay(WAYS), Overlap("deferred"), 0.0, 0.0
            for number in range(300):
                factor = factors[WAYS.index(now.way)]
                drift = lasting * drift + math.sqrt(1 - lasting**2) * random.gauss(0, 0.05)
                level = random.choice([0, 0.22]) if random.random() < 0.05 else level
                if number >= 50:
                    lost.append(factor - 1)
                noise = random.gauss(drift + level, 0.08)
                now = fastest.next(now, factor * math.exp(noise))
    assert sum(lost) <= 0.02 * len(lost)


@given(st.builds(Overlap, st.sampled_from(WAYS), st.booleans(), *[st.none() | SECONDS] * len(WAYS)))
def test_a_choice_arrives_as_it_was_sent(choice: Overlap) -> None:
    data = packed(choice)
    assert len(data) == CHOICE_BYTES
    assert unpacked(data) == choice
    with pytest.raises(ValueError, match="choice"):
        unpacked(data[:-1])
    with pytest.raises(ValueError, match=f"no way {len(WAYS)}"):
        unpacked(bytes([len(WAYS)]) + data[1:])
