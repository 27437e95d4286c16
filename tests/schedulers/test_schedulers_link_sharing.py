"""turns: jobs that share a link end up computing while others send, and nobody waits for ever."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from compressa.schedulers.link_sharing import MOST_CLAIMS, Claim, Line, Rhythm, Watch
from hypothesis import given
from hypothesis import strategies as st

Life = Generator[float, float, None]  # yields when it goes on, and is sent what time it is then


@dataclass
class Job:
    """Computes, joins the line, sends when it is first or has no patience any more, leaves."""

    name: str
    compute_s: float
    send_s: float
    dies_s: float = float("inf")
    jitter: float = 0.0  # by which share a step computes longer or shorter
    rhythm: Rhythm = field(default_factory=Rhythm)
    begins_s: list[float] = field(default_factory=list)  # of communication
    ends_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def period_s(self) -> float:
        return self.compute_s + self.send_s


class Link:
    """A link on a virtual clock; those who send at the same time share it equally, roughly.

    Sending beside k others takes k + 1 times as long, by who sends at its begin.
    """

    def __init__(self, jobs: list[Job], look_s: float = 0.001) -> None:
        self.jobs, self.look_s, self.line = jobs, look_s, Line()
        self.sending: set[str] = set()
        self._events: list[tuple[float, int, Life]] = []
        self._numbers = itertools.count()
        self.overlaps: list[tuple[float, str, str]] = []

    def run(self, steps: int) -> None:
        for job in self.jobs:
            life = self._life(job, steps)
            self.at(next(life) + job.compute_s, life)
        while self._events:
            now_s, _, life = heapq.heappop(self._events)
            try:
                self.at(life.send(now_s), life)
            except StopIteration:
                continue

    def at(self, time_s: float, life: Life) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), life))

    def _life(self, job: Job, steps: int) -> Life:
        now_s = yield 0.0
        watch, random_ = Watch(), random.Random(job.name)
        for number in range(steps):
            asked_s = now_s
            self.line = self.line.joined(Claim(job.name, number, job.rhythm.send_s))
            end_s = asked_s + job.rhythm.patience_s
            while True:
                self.line = watch.moved(self.line, now_s)
                watch = watch.saw(self.line, now_s)
                first = self.line.first
                in_time = first is not None and first.job == job.name
                if in_time or now_s >= end_s:
                    break
                now_s = yield min(now_s + self.look_s, end_s)
            if not in_time:
                self.line = self.line.left(job.name)
            job.rhythm = job.rhythm.waited(in_time=in_time)
            self.overlaps += [(now_s, job.name, other) for other in self.sending]
            job.waits_s.append(now_s - asked_s)
            job.begins_s.append(now_s)
            if now_s > job.dies_s:
                return  # with its claim
            self.sending.add(job.name)
            began_s = now_s
            now_s = yield now_s + job.send_s * len(self.sending)
            self.sending.discard(job.name)
            self.line = self.line.left(job.name)
            job.ends_s.append(now_s)
            job.rhythm = job.rhythm.stepped(now_s - began_s + job.compute_s, now_s - began_s)
            now_s = yield now_s + job.compute_s * random_.uniform(1 - job.jitter, 1 + job.jitter)


@st.composite
def feasible(draw: st.DrawFn) -> list[Job]:
    """Jobs of one period whose communication fits into it, with some room for the looks."""
    count = draw(st.integers(2, 5))
    period_s = draw(st.floats(0.2, 3.0))
    weights = draw(st.lists(st.floats(0.1, 1.0), min_size=count, max_size=count))
    load = draw(st.floats(0.3, 0.95))
    sends = [load * period_s * weight / sum(weights) for weight in weights]
    return [Job(f"job {i}", period_s - send_s, send_s) for i, send_s in enumerate(sends)]


@given(feasible())
def test_feasible_jobs_end_up_without_overlap_each_as_fast_as_alone(jobs: list[Job]) -> None:
    link = Link(jobs)
    link.run(30)
    late_s = jobs[0].period_s * 12
    assert not [overlap for overlap in link.overlaps if overlap[0] > late_s]
    for job in jobs:
        last = job.begins_s[-10:]
        periods = [b - a for a, b in itertools.pairwise(last)]
        assert max(periods) <= job.period_s + 2 * link.look_s * len(jobs)


def test_two_jobs_that_compute_for_half_of_their_period_alternate() -> None:
    """There is no room at all: what a look comes too late is all that is lost."""
    jobs = [Job("a", 0.5, 0.5), Job("b", 0.5, 0.5)]
    link = Link(jobs)
    link.run(20)
    assert not link.overlaps
    assert jobs[1].waits_s[0] == pytest.approx(0.5, abs=0.002)
    for job in jobs:
        assert job.ends_s[-1] - job.ends_s[5] <= 14 * 1.005


def test_two_such_jobs_alternate_with_steps_that_are_not_alike() -> None:
    """Each waits for the other's longer steps: by 0.8 of their deviation, in theory."""
    jobs = [Job("a", 0.5, 0.5, jitter=0.1), Job("b", 0.5, 0.5, jitter=0.1)]
    link = Link(jobs)
    link.run(200)
    assert not [overlap for overlap in link.overlaps if overlap[0] > 12.0]
    for job in jobs:
        assert job.ends_s[-1] - job.ends_s[9] <= 190 * 1.04


def test_a_job_of_short_steps_hardly_waits_for_one_that_sends_for_long() -> None:
    long, short = Job("long", 5.0, 5.0), Job("short", 0.009, 0.001)
    Link([long, short]).run(1200)
    assert short.ends_s[-1] <= 1200 * short.period_s * 1.25
    assert sum(short.waits_s) <= 0.05 * short.ends_s[-1]


def test_infeasible_jobs_are_no_slower_than_the_link_makes_them() -> None:
    jobs = [Job("a", 0.25, 0.75), Job("b", 0.25, 0.75)]
    Link(jobs).run(20)
    for job in jobs:
        assert job.ends_s[-1] - job.ends_s[5] <= 14 * 1.5 * 1.01


def test_a_job_that_is_alone_never_waits() -> None:
    job = Job("a", 0.1, 0.1)
    Link([job]).run(20)
    assert max(job.waits_s) == 0.0


@given(feasible(), st.integers(0, 4), st.floats(0.0, 10.0))
def test_a_job_that_dies_is_forgotten_and_nobody_stops(
    jobs: list[Job], who: int, dies_steps: float
) -> None:
    dead = jobs[who % len(jobs)]
    dead.dies_s = dies_steps * dead.period_s
    link = Link(jobs)
    link.run(60)
    assert not link.line.has(dead.name)
    for job in jobs:
        if job is not dead:
            assert len(job.ends_s) == 60
            assert max(job.waits_s) <= max(job.period_s * 2, 1.0) + 0.01
            assert max(job.waits_s[-5:]) <= link.look_s * 2 * len(jobs)


# --- the line ------------------------------------------------------------------------------------

names = st.sampled_from([f"job {i}" for i in range(6)])
moves = st.lists(st.tuples(st.sampled_from(["join", "leave", "forget"]), names), max_size=60)


@given(moves)
def test_the_line_is_fair_and_nobody_is_in_it_twice(done: list[tuple[str, str]]) -> None:
    line = Line()
    for number, (move, job) in enumerate(done):
        if move == "join":
            line = line.joined(Claim(job, number, 0.1))
        elif move == "leave":
            line = line.left(job)
        else:
            line = Watch(line.first, 0.0).moved(line, 99.0)
        numbers = [claim.number for claim in line.claims]
        assert numbers == sorted(numbers)  # who came first is first
        assert len({claim.job for claim in line.claims}) == len(numbers)


def test_only_who_has_been_first_for_too_long_is_forgotten() -> None:
    line = Line().joined(Claim("a", 1, 0.1)).joined(Claim("b", 1, 0.1))
    watch = Watch().saw(line, 10.0)
    assert watch.moved(line, 10.4) == line
    assert watch.moved(line, 10.5) == line.left("a")
    again = Line().joined(Claim("a", 2, 0.1))
    assert watch.moved(again, 99.0) == again
    assert watch.saw(again, 99.0).moved(again, 99.4) == again
    assert Watch().moved(Line(), 99.0) == Line()


def test_a_line_that_is_too_long_takes_no_more() -> None:
    line = Line()
    for number in range(MOST_CLAIMS + 1):
        line = line.joined(Claim(f"job {number}", 1, 0.1))
    assert len(line.claims) == MOST_CLAIMS
    assert not line.has(f"job {MOST_CLAIMS}")


def test_patience_is_halved_by_vain_waits_and_comes_back() -> None:
    rhythm = Rhythm().stepped(0.4, 0.1)
    assert rhythm.patience_s == pytest.approx(0.4)
    for _ in range(20):
        rhythm = rhythm.waited(in_time=False)
    assert rhythm.patience_s == pytest.approx(0.4 / 64)
    for _ in range(6):
        rhythm = rhythm.waited(in_time=True)
    assert rhythm.patience_s == pytest.approx(0.4)
