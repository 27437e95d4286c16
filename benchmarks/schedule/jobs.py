"""Two jobs on one bottleneck link: alone, beside each other, and in turns.

Both have a rank on each of two hosts, whose link is what they share, and each computes for half of
its period when it is alone. Computing is a timed wait: see `job`. Both begin their first step at
the same moment, and no two of their steps compute for equally long, whether in turns or not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.schedule.hosts import JOB, Asked, started_ranks
from benchmarks.schedule.records import Jobs
from compressa.machine import now
from compressa.testbed import Testbed, Watch, burstiness

Port = Literal["fifo", "fair"]
Of = Callable[[Sequence[float]], float]
"""What is told of several times: their mean, say."""

SIZE_BYTES, STEPS, JITTER = 2_000_000, 20, 0.1
_FLOAT_BYTES = 4
_SETTLING = 0.2  # part of the steps until the jobs have found their turns
_SOON_S = 0.1  # until then all ranks have heard when to begin


@dataclass(frozen=True)
class Steps:
    """How long the steps of a job took.

    Attributes:
        steps_s: By step, on the slowest rank.
        sends_s: How much of each was communication, waiting for a turn included.
    """

    steps_s: Sequence[float]
    sends_s: Sequence[float]

    @property
    def settled_s(self) -> Sequence[float]:
        """The steps in which the jobs had settled."""
        return self.steps_s[round(_SETTLING * len(self.steps_s)) :]

    @property
    def usual_s(self) -> float:
        """The mean of these."""
        return statistics.fmean(self.settled_s)

    @property
    def communication(self) -> float:
        """The share of communication in all steps."""
        return sum(self.sends_s) / sum(self.steps_s)


def of_alone(of: Of, jobs: Sequence[Steps], alone: Sequence[Steps]) -> tuple[float, ...]:
    """Return what is told of each job's settled steps, as multiples of its own mean step alone."""
    return tuple(of(job.settled_s) / own.usual_s for job, own in zip(jobs, alone, strict=True))


def two_jobs(bed: Testbed, link: str, port: Port) -> Jobs:
    """Measure two jobs on the link between two hosts.

    Args:
        bed: The hosts.
        link: What is to be between them.
        port: How connections share it; see `Jobs`. In one queue TCP favours whoever sends already,
            so that jobs push each other apart in some ten to twenty steps; with even shares they
            keep the phases in which they meet.

    Raises:
        TransportError: A rank failed, or took too long.
    """
    # Where each connection may have all of the link, each has a queue of its own.
    bed.set_link(link if port == "fifo" else f"{link} of {link}")
    (first,), bursts, compute_s = _run(bed, [0], None)
    (second,), _, _ = _run(bed, [1], compute_s)
    alone = first, second
    unstaggered, more, _ = _run(bed, [0, 1], compute_s)
    with tempfile.TemporaryDirectory(prefix="compressa-share-") as folder:
        share = {"name": "bottleneck", "at": f"file://{folder}"}
        staggered, most, _ = _run(bed, [0, 1], compute_s, share=share)

    def both(of: Of) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return of_alone(of, unstaggered, alone), of_alone(of, staggered, alone)

    return Jobs(
        link=link,
        port=port,
        size_bytes=SIZE_BYTES,
        alone_s=first.usual_s,
        communication=first.communication,
        jitter=JITTER,
        unstaggered=of_alone(statistics.fmean, unstaggered, alone),
        staggered=of_alone(statistics.fmean, staggered, alone),
        medians=both(statistics.median),
        worsts=both(max),
        burstiness=(bursts, more, most),
        timestamp=now(),
    )


def _run(
    bed: Testbed, seeds: Sequence[int], compute_s: float | None, **schedule: Any
) -> tuple[list[Steps], float | None, float]:
    """Run jobs side by side, which begin together.

    Args:
        bed: The hosts.
        seeds: Of each job's jitter.
        compute_s: How long a step computes; None for as long as its communication takes.
        schedule: Section of the configuration.

    Returns:
        The steps of each; peak over mean of what the first host sends in windows of 10 ms, None
        where nothing counts it; how long a step computes.
    """
    with ExitStack() as stack:
        jobs = [stack.enter_context(started_ranks(bed, JOB)) for _ in seeds]
        _all(jobs, "open", elems=SIZE_BYTES // _FLOAT_BYTES, schedule=schedule)
        if compute_s is None:
            compute_s = float(jobs[0]("measure")["seconds"])
        work = {"compute_s": compute_s, "steps": STEPS, "jitter": JITTER}
        bed.counters()  # opens them
        with Watch(bed.counters) as counters:
            begin_s = time.monotonic() + _SOON_S
            for job, seed in zip(jobs, seeds, strict=True):
                job.tell("run", begin_s=begin_s, seed=seed, **work)
            steps = [Steps(**job.hear("its steps")) for job in jobs]
        _all(jobs, "close")
    sent = [(at_s, told[0].tx_bytes) for at_s, told in counters.readings if told is not None]
    return steps, burstiness(sent) if sent else None, compute_s


def _all(jobs: Sequence[Asked], what: str, **given: Any) -> None:
    """Have all jobs do something at the same time."""
    for job in jobs:
        job.tell(what, **given)
    for job in jobs:
        job.hear(what)
