"""What was reached of what is asked, worked out from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.schedule.plan import AUTO, DDP, OURS, RATIOS
from benchmarks.schedule.records import Case, ScheduleMeasurement, Step
from benchmarks.targets import Verdict

MOST_OF_IDEAL = 1.10
LEAST_SPEEDUP, AT_RATIO = 1.25, 1.0
LEAST_PIPELINED, LEAST_BOUND = 0.9, 1.3
MOST_CHUNK_US = 20.0
MOST_TRACED = 1.01
MOST_ERROR = 0.10
MOST_STAGGERED = 1.10
LEAST_FEWER, MOST_SLOT_SLOWDOWN = 5.0, 1.02


def verdicts(measurement: ScheduleMeasurement) -> list[Verdict]:
    """Judge all of it; what was not measured is not judged."""
    found: list[Verdict] = []
    for case in measurement.cases:
        if case.ratio in RATIOS:
            found += _of_steps(case, measurement.of(case))
    found += _of_hook(measurement)
    found += _of_costs(measurement)
    found += _of_jobs(measurement)
    found += _of_pushes(measurement)
    return found


def name_of(case: Case) -> str:
    """Name a case."""
    return f"{case.compressor}, C = {case.ratio:g} (F + B)"


def best_ddp(steps: Sequence[Step]) -> Step | None:
    """Return DDP at its best."""
    found = [step for step in steps if step.method in {method.name for method in DDP}]
    return min(found, key=lambda step: step.median_s, default=None)


def _of_steps(case: Case, steps: Sequence[Step]) -> Iterator[Verdict]:
    """What a user gets who asks for it: that of `auto`."""
    where, ours = name_of(case), next((step for step in steps if step.method == AUTO), None)
    if ours is None:
        return
    share = ours.median_s / case.ideal_s
    yield _at_most("step, of the ideal", where, share, MOST_OF_IDEAL, AUTO)
    ddp = best_ddp(steps)
    if ddp is not None and case.ratio == AT_RATIO:
        times = ddp.median_s / ours.median_s
        beside = f"{AUTO}, beside {ddp.method}"
        yield _at_least("faster than DDP", where, times, LEAST_SPEEDUP, beside)
    named = {method.name for method in OURS}
    errors = [
        (abs(step.error), step.method)
        for step in steps
        if step.error is not None and step.method in named
    ]
    if errors:
        error, method = max(errors)
        met = error <= MOST_ERROR
        yield Verdict("simulated step", (where,), f"{error:.0%}", f"{MOST_ERROR:.0%}", method, met)


def _of_hook(measurement: ScheduleMeasurement) -> Iterator[Verdict]:
    for row in measurement.pipelined:
        where, at = f"hook, {row.compressor}, {row.link}", f"{row.gain:.2f} of {row.bound:.2f}"
        share, target = row.gain / row.bound, "pipelined units, of the bound"
        verdict = _at_least(target, where, share, LEAST_PIPELINED, f"{at} times")
        yield verdict if row.bound >= LEAST_BOUND else verdict._replace(met=None)


def _of_costs(measurement: ScheduleMeasurement) -> Iterator[Verdict]:
    for row in measurement.overhead:
        where = f"{row.what}, {row.chunks:,} chunks"
        reached, asked = f"{row.chunk_us:.1f} us", f"{MOST_CHUNK_US:.0f} us"
        met = row.chunk_us <= MOST_CHUNK_US
        yield Verdict("scheduling a chunk", (where,), reached, asked, "", met)
    for traced in measurement.traced:
        at = f"quartiles {traced.ratio_low:.3f} and {traced.ratio_high:.3f}"
        verdict = _at_most("step with a trace", "overlap", traced.ratio, MOST_TRACED, at, digits=3)
        # Where pairs of steps differ by more than is asked, a small median proves nothing.
        yield _judged_if(traced.ratio_high <= MOST_TRACED, verdict)


def _of_jobs(measurement: ScheduleMeasurement) -> Iterator[Verdict]:
    for jobs in measurement.jobs:
        at = f"not staggered {max(jobs.unstaggered):.2f}"
        where = f"two jobs, {jobs.link}, {jobs.port}"
        verdict = _at_most("staggered, of alone", where, max(jobs.staggered), MOST_STAGGERED, at)
        # Where jobs do not disturb each other anyway, there was nothing to stagger.
        yield _judged_if(max(jobs.unstaggered) > MOST_STAGGERED, verdict)


def _of_pushes(measurement: ScheduleMeasurement) -> Iterator[Verdict]:
    for row in measurement.pushes:
        where = f"four workers, one server, {row.link}"
        before, after = row.retransmitted
        at = f"{before:,} and {after:,} segments"
        fewer = row.fewer_retransmitted
        yield _at_least("fewer sent again, in slots", where, fewer, LEAST_FEWER, at)
        before, after = row.peak_bytes
        at = f"{before:,} and {after:,} bytes"
        yield _at_least("smaller backlog, in slots", where, row.smaller_peak, LEAST_FEWER, at)
        yield _at_most("round, in slots", where, row.slowdown, MOST_SLOT_SLOWDOWN, "")


def _judged_if(telling: bool, verdict: Verdict) -> Verdict:
    """What could not show that a target is met can still show that it is missed."""
    return verdict if telling or not verdict.met else verdict._replace(met=None)


def _at_most(
    target: str, where: str, reached: float, most: float, at: str, *, digits: int = 2
) -> Verdict:
    met = reached <= most
    return Verdict(target, (where,), f"{reached:.{digits}f}", f"<= {most:.{digits}f}", at, met)


def _at_least(target: str, where: str, reached: float, least: float, at: str) -> Verdict:
    return Verdict(target, (where,), f"{reached:.2f}", f">= {least:.2f}", at, reached >= least)
