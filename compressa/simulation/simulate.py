"""simulate: how long a step takes, run on a virtual clock by the engine's own parts."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from compressa.engine.measuring.profile_file import ProfileFile
from compressa.errors import StateError
from compressa.simulation.job import Job, job_of
from compressa.simulation.rank import SimulatedRank
from compressa.simulation.scenario import Scenario
from compressa.simulation.spans import Spans
from compressa.tracing import Trace
from compressa.tracing.summary import summarise


@dataclass(frozen=True)
class UnitOutcome:
    """One unit in the last step; seconds from the beginning of its backward.

    Attributes:
        name: For people.
        ready_s: When backward had readied it.
        done_s: When its mean was there, on the last rank.
        need_s: When the next forward would use it, if it never waited.
    """

    name: str
    ready_s: float
    done_s: float
    need_s: float


@dataclass(frozen=True)
class Simulated:
    """What came of it, per step.

    Attributes:
        policy: Who went next.
        hosts: How many there were.
        step_s: From step to step, of the last rank to begin it.
        compute_s: What of it is computed: F + B.
        wire_s: For how long the busiest direction of the busiest port was occupied: C.
        exposed_s: For how long rank 0's training waited.
        inversions: How often one of rank 0's exchanges waited while one that is needed later left.
        inverted_s: For how long.
        units: In the order in which backward readies them.
        trace: Rank 0's.
    """

    policy: str
    hosts: int
    step_s: float
    compute_s: float
    wire_s: float
    exposed_s: float
    inversions: float
    inverted_s: float
    units: tuple[UnitOutcome, ...]
    trace: Trace

    @property
    def ideal_s(self) -> float:
        """The shortest step that there could be: max(F + B, C)."""
        return max(self.compute_s, self.wire_s)

    @property
    def idle_s(self) -> float:
        """For how long that port was free."""
        return self.step_s - self.wire_s


def simulate(scenario: Scenario) -> Simulated:
    """Run steps in a row.

    Returns:
        The means over all steps but the first, which begins with an idle network; a function of
        the argument.

    Raises:
        ConfigError: The configuration does not fit the parameters.
        StateError: Ranks wait for each other without end.
    """
    return run(job_of(scenario))


def compare(scenarios: Sequence[Scenario]) -> Iterator[Simulated]:
    """Run scenarios that differ in their policy; those of which the plan is the same, once.

    Raises:
        CompressaError: As `simulate`.
    """
    known: dict[object, Simulated] = {}
    for scenario in scenarios:
        job = job_of(scenario)
        plan = replace(job.step_plan.plan, policy="", reason="")
        key = (plan, tuple(job.step_plan.launches))
        if key not in known:
            known[key] = run(job)
        yield replace(known[key], policy=scenario.config.schedule.policy)


def run(job: Job) -> Simulated:
    """Run what was worked out, as `simulate` does.

    Raises:
        StateError: Ranks wait for each other without end.
    """
    scenario, network = job.scenario, job.network()
    spans = Spans(job, 0)
    ranks = [
        SimulatedRank(job, end, network.clock, None if end.rank else spans) for end in network.ends
    ]
    for rank in ranks:
        rank.start()
    with _without_collector():
        network.clock.run()
    stuck = [number for number, rank in enumerate(ranks) if not rank.finished]
    if stuck:
        raise StateError(f"ranks {stuck} wait without end: the plan is a deadlock")
    begun_s = [max(times) for times in zip(*(rank.begun_s for rank in ranks), strict=True)]
    steps = scenario.steps - 1
    trace = spans.trace(ranks[0].begun_s[-1])
    figures = [figures for step, figures in summarise(trace).steps if step]
    return Simulated(
        policy=scenario.config.schedule.policy,
        hosts=scenario.hosts,
        step_s=(begun_s[-1] - begun_s[1]) / steps,
        compute_s=job.compute_s,
        wire_s=network.busiest_s / scenario.steps,
        exposed_s=sum(ranks[0].waited_s[1:]) / steps,
        inversions=sum(each.inversions for each in figures) / steps,
        inverted_s=sum(each.inverted_s for each in figures) / steps,
        units=_units(job, ranks),
        trace=trace,
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects, none of which is part of a cycle, need no garbage collector."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def simulated_step_s(file: ProfileFile, **conditions: Any) -> float:
    """Predict how long a step takes.

    Args:
        file: What was measured.
        conditions: As of `Scenario.of`.

    Raises:
        ConfigError: It can not be simulated.
    """
    return simulate(Scenario.of(file, **conditions)).step_s


def _units(job: Job, ranks: list[SimulatedRank]) -> tuple[UnitOutcome, ...]:
    last_s = [max(times) for times in zip(*(rank.done_s for rank in ranks), strict=True)]
    begins_s = job.backward_s + job.before_s
    return tuple(
        UnitOutcome(unit.name, unit.times.ready_s, done_s, begins_s + unit.times.need_s)
        for unit, done_s in zip(job.units, last_s, strict=True)
    )
