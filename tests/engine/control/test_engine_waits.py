"""From what each rank waits for follows who holds up the others, and one verdict for all."""

from __future__ import annotations

import json
import logging
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.engine.control.inquest import Complaint, Inquest, heard, told
from compressa.engine.control.long_waits import LongWaits
from compressa.engine.control.waits import Activity, Cause, Wait, cause_of
from compressa.errors import CompressaError, PayloadError, PeerLost, Timeout, TransportError
from compressa.transports.silence import Hearing

SIZE = 6


def waiting(*ranks: int, operation: str = "o", seconds: float = 2.0) -> Activity:
    wait = Wait(operation, operation, ranks, seconds)
    return Activity(f"in {operation}", seconds, True, (wait,) if ranks else ())


def elsewhere() -> Activity:
    return Activity("elsewhere", 3.0, False)


@st.composite
def worlds(draw: st.DrawFn) -> dict[int, Activity]:
    """What ranks do: each waits for some others in an operation of its own, or for nobody."""
    found = {}
    for rank in range(SIZE):
        others = draw(st.sets(st.integers(0, SIZE - 1), max_size=3)) - {rank}
        found[rank] = waiting(*sorted(others), operation=f"o{rank}") if others else elsewhere()
    return found


@given(worlds(), st.sets(st.integers(1, SIZE - 1)))
def test_the_own_cycle_is_named_or_ends_of_chains_or_else_all_cycles(
    activities: dict[int, Activity], dumb: set[int]
) -> None:
    """Against the closure of the matrix of who waits for whom."""
    if not activities[0].waits:
        return
    known = {rank: activity for rank, activity in activities.items() if rank not in dumb}
    edges = np.zeros((SIZE, SIZE), bool)
    for rank, activity in known.items():
        for wait in activity.waits:
            edges[rank, list(wait.ranks)] = True
    reach = edges
    for _ in range(SIZE):
        reach = reach | (reach.astype(int) @ edges.astype(int) > 0)
    reached = np.flatnonzero(reach[0])
    ends = [r for r in reached if not edges[r].any()]
    own = [r for r in reached if reach[r, 0]] if reach[0, 0] else []
    due = own or ends or [r for r in reached if reach[r, r]]
    cause = cause_of(known, 0, known[0].waits[0])
    assert cause.ranks == tuple(due)
    assert (cause.cyclic, cause.stuck) == (not ends, bool(own))
    assert all(f"rank {r} " in cause.text for r in due[:6])


def test_who_is_in_the_same_operation_is_followed_and_nothing_else_of_it() -> None:
    """Rank 1 computes; what it waits for beside that does not keep it from coming."""
    beside = Activity("computing", 1.0, False, (Wait("other", "other", (2,), 1.0),))
    world = {0: waiting(1), 1: beside, 2: elsewhere()}
    assert cause_of(world, 0, world[0].waits[0]).ranks == (1,)
    same = Activity("computing", 1.0, False, (Wait("o", "o", (2,), 1.0),))
    assert cause_of({**world, 1: same}, 0, world[0].waits[0]).ranks == (2,)


def test_only_a_cycle_through_calls_that_are_not_made_never_ends() -> None:
    """Who is in one operation together waits for the network, which may be slow."""
    slow = {rank: waiting(1 - rank) for rank in range(2)}
    cause = cause_of(slow, 0, slow[0].waits[0])
    assert (cause.cyclic, cause.stuck) == (True, False)
    apart = {rank: waiting(1 - rank, operation=f"o{rank}") for rank in range(2)}
    assert cause_of(apart, 0, apart[0].waits[0]).stuck
    step = {0: waiting(1, 2, operation="save"), 1: waiting(2), 2: waiting(0)}  # a ring's stages
    assert cause_of(step, 0, step[0].waits[0]).stuck
    assert not cause_of({**step, 2: elsewhere()}, 0, step[0].waits[0]).stuck


@given(worlds())
def test_activities_and_errors_survive_the_way(activities: dict[int, Activity]) -> None:
    for activity in activities.values():
        assert Activity.of(json.loads(json.dumps(activity.message())), SIZE) == activity


@pytest.mark.parametrize(
    ("error", "due"),
    [
        (PeerLost(1, "rank 1 is lost"), PeerLost(1, "rank 1 is lost")),
        (Timeout((1, 2), "late"), Timeout((1, 2), "late")),
        (PayloadError("nonsense"), PayloadError("nonsense")),
        (CompressaError("a bug"), PeerLost(3, "rank 3 gave up: a bug")),
        (TransportError("broken"), TransportError("broken")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_others_as_what_it_is(error: CompressaError, due: CompressaError) -> None:
    got = heard(json.loads(json.dumps(told(error, 3))), SIZE)
    assert (type(got), str(got), vars(got)) == (type(due), str(due), vars(due))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
)
FIELDS = ["error", "text", "ranks", "doing", "seconds", "blocked", "waits", "operation", "what"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["Timeout", "PeerLost"])))
def test_what_makes_no_sense_is_refused(message: Mapping[str, Any]) -> None:
    for read in (heard, Activity.of):
        try:
            read(message, SIZE)
        except ValueError:
            continue


# One verdict


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_all_come_to_one_verdict_in_whatever_order_they_hear(seed: int) -> None:
    """One rank is dead, or late; any of the others complain, and hear each other in any order."""
    dice = random.Random(seed)
    size = dice.randint(2, 5)
    culprit, dead = dice.randrange(size), dice.random() < 0.5
    alive = [rank for rank in range(size) if not (dead and rank == culprit)]
    errors: dict[int, CompressaError] = {}
    for rank in alive:
        if rank != culprit and (not errors or dice.random() < 0.5):
            late = Timeout((culprit,), f"rank {rank} waited")
            lost = PeerLost(culprit, f"rank {culprit} is lost")
            errors[rank] = lost if dead else late
    inquests = {rank: Inquest(rank, size) for rank in alive}
    activities = {r: elsewhere() if r == culprit else waiting(culprit) for r in alive}
    unreachable = {culprit} if dead else set[int]()
    verdicts: dict[int, CompressaError] = {}
    links = {(a, b): deque[Any]() for a in alive for b in alive if a != b}
    answered = set[int]()

    def say(rank: int, complaint: Complaint | None) -> None:
        inquests[rank].hear(rank, activities[rank], complaint)
        answered.add(rank)
        for other in alive:
            if other != rank:
                links[rank, other].append(complaint)
        decide(rank)

    def decide(rank: int) -> None:
        mine = inquests[rank]
        if (
            not mine.ranks_before(unreachable)
            and mine.complete(unreachable)
            and rank not in verdicts
        ):
            verdicts[rank] = mine.verdict()

    pending = list(errors)
    while pending or any(links.values()):
        under_way = [link for link, messages in links.items() if messages]
        if pending and (not under_way or dice.random() < 0.3):
            rank = pending.pop(dice.randrange(len(pending)))
            say(rank, Complaint(errors[rank]))
            continue
        source, target = dice.choice(under_way)
        complaint = links[source, target].popleft()
        inquests[target].hear(source, activities[source], complaint)
        if target not in answered:
            say(target, None)
        decide(target)
    assert set(verdicts) == {min(alive)}
    (verdict,) = verdicts.values()
    assert isinstance(verdict, PeerLost if dead else Timeout)
    named = verdict.rank if isinstance(verdict, PeerLost) else getattr(verdict, "ranks", None)
    assert named == (culprit if dead else (culprit,))


def test_who_left_because_of_another_is_not_blamed() -> None:
    """Rank 1 lost rank 2 and closed its connections, which rank 0 noticed first."""
    inquest = Inquest(0, 3)
    inquest.hear(0, elsewhere(), Complaint(PeerLost(1, "rank 1 is lost: closed")))
    inquest.hear(1, elsewhere(), Complaint(PeerLost(2, "rank 2 is lost: silent")))
    verdict = inquest.verdict()
    assert isinstance(verdict, PeerLost)
    assert verdict.rank == 2


def test_who_is_alive_and_has_not_answered_is_not_accused_alone() -> None:
    """On a slow link even an answer takes its time."""
    inquest = Inquest(0, 3)
    inquest.hear(0, waiting(1), Complaint(Timeout((1,), "rank 0 waited")))
    inquest.hear(2, waiting(1), None)
    for alive, named in (([1], (0, 1)), ([], (1,))):
        verdict = inquest.verdict(alive)
        assert isinstance(verdict, Timeout)
        assert verdict.ranks == named


# Silence


@given(
    st.lists(st.tuples(st.sampled_from(["tick", "away", "beat"]), st.floats(0.0, 3.0)), max_size=80)
)
def test_own_absences_count_against_nobody(events: list[tuple[str, float]]) -> None:
    """A peer is silent when this process has run for as long as `silence_s` since its last sign."""
    silence_s, tick_s = 2.0, 0.25
    hearing, now_s, heard_s, ran_s = Hearing(silence_s, tick_s, 0.0), 0.0, 0.0, 0.0
    for event, value in events:
        if event == "beat":
            heard_s, ran_s = now_s, 0.0
            continue
        away_s = 1.0 + value if event == "away" else 0.0
        if 0.99 < away_s < 1.01:
            continue  # whether it is brief, rounding settles
        now_s += tick_s + away_s
        ran_s += tick_s
        silent = hearing.look(now_s, {1: heard_s})
        if abs(ran_s - silence_s) > 1e-6:
            assert silent == ([1] if ran_s > silence_s else []), (now_s, heard_s, ran_s)


# Long waits


class Bench:
    """Long waits on a clock of its own, among ranks whose activities are given."""

    def __init__(self, activities: dict[int, Activity]) -> None:
        self.activities, self.now_s, self.asked = activities, 0.0, 0
        self.stuck: list[Cause] = []
        self.waits = LongWaits(
            0, self._ask, lambda _: activities, lambda w, cause, a: self.stuck.append(cause), 30.0
        )

    def _ask(self) -> float:
        self.asked += 1
        return self.now_s

    def look_for(self, seconds: float, operation: str) -> None:
        began_s = self.now_s
        while self.now_s < began_s + seconds:
            self.now_s += 0.25
            wait = Wait(operation, "step 4", (1,), self.now_s - began_s)
            self.activities[0] = Activity("in step 4", 0.0, True, (wait,))
            self.waits.look(self.now_s, self.activities[0])


def test_a_long_wait_is_logged_once_with_who_does_what(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({1: elsewhere()})
    with caplog.at_level(logging.WARNING, "compressa"):
        bench.look_for(29.0, "4/1")
        assert not caplog.records
        bench = Bench({1: elsewhere()})
        bench.look_for(100.0, "4/1")
        bench.look_for(100.0, "4/2")  # another unit of the same step
        bench.look_for(100.0, "5/0")
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "rank 0 has waited for rank 1 in step 4 for 3" in texts[0]
    assert "rank 1 is elsewhere" in texts[0]
    assert not bench.stuck


def test_a_wait_that_never_ends_is_found_when_asked_twice() -> None:
    bench = Bench({1: waiting(0, operation="other")})
    bench.look_for(34.0, "save#1")
    assert (bench.asked, bench.stuck) == (1, [])
    bench.look_for(0.5, "load#1")  # it has ended after all
    bench.look_for(60.0, "save#2")
    assert [cause.ranks for cause in bench.stuck] == [(0, 1)]
