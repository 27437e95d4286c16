"""Two jobs on one bottleneck link: alone, beside each other, and in turns.

Both have a rank on each of two hosts, whose link is what they share, and each computes for half of
its period when it is alone. There is no model: computing is a wait of about a given time, since
several jobs would otherwise fight for the processors of one machine, and communicating is a step
over tensors of a given size. Both begin their first step at the same moment, and no two of their
steps compute for equally long, whether in turns or not.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

import compressa
from benchmarks.schedule.records import Jobs, Pair
from compressa.machine import now
from compressa.testbed import Testbed, Watch, burstiness
from harness.ranks import Ranks
from harness.start import started_ranks
from harness.wire import Wire

Port = Literal["fifo", "fair"]
Of = Callable[[Sequence[float]], float]
"""What is told of several times: their mean, say."""

SIZE_BYTES, STEPS, JITTER = 2_000_000, 20, 0.1
_FLOAT_BYTES = 4
_TENSORS = 8
_WARM_STEPS = 3
_SETTLING = 0.2  # part of the steps until the jobs have found their turns
_SOON_S = 0.1  # until then all ranks have heard when to begin


class Job:
    """What a rank of a job can be asked for."""

    def __init__(self, wire: Wire) -> None:
        self._gradients = {
            f"p{i}": torch.ones(SIZE_BYTES // _FLOAT_BYTES // _TENSORS) for i in range(_TENSORS)
        }

    def open(self, schedule: Mapping[str, Any]) -> None:
        """Open an engine, and warm up.

        Args:
            schedule: Section of the configuration.
        """
        self._engine = compressa.open_engine({"schedule": schedule}, self._gradients)
        for _ in range(_WARM_STEPS):
            self._communicate()

    def measure(self) -> dict[str, Any]:
        """Tell how long communication takes, on the slowest rank."""
        seconds = sorted(self._communicate() for _ in range(2 * _WARM_STEPS + 1))[_WARM_STEPS]
        slowest = torch.tensor([seconds])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return {"seconds": float(slowest)}

    def run(
        self, begin_s: float, compute_s: float, steps: int, jitter: float, seed: int
    ) -> dict[str, Any]:
        """Train, and tell how long steps took, and how long of that was communication.

        Args:
            begin_s: When the first step begins, by the clock that processes of a machine share.
            compute_s: How long a step computes before its gradients are there.
            steps: How many steps are timed; a third more follow, so that other jobs are not alone
                while theirs are timed.
            jitter: See `waits_s`.
            seed: See `waits_s`.
        """
        time.sleep(max(0.0, begin_s - time.monotonic()))
        steps_s, sends_s = [], []
        for wait_s in waits_s(compute_s, steps + steps // 3, jitter, seed):
            time.sleep(wait_s)
            sends_s.append(self._communicate())
            steps_s.append(time.monotonic() - begin_s)
            begin_s += steps_s[-1]
        return {"steps_s": steps_s[:steps], "sends_s": sends_s[:steps]}

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _communicate(self) -> float:
        """Do a step without computing; return how long it took."""
        begin_s = time.perf_counter()
        self._engine.wait([self._engine.submit(self._gradients)])
        return time.perf_counter() - begin_s


def waits_s(compute_s: float, steps: int, jitter: float, seed: int) -> Iterator[float]:
    """Yield how long each step computes.

    Args:
        compute_s: On average.
        steps: How many there are.
        jitter: Up to this share longer or shorter, at random, as real ones do.
        seed: Of that, the same on all ranks of a job.
    """
    random_ = random.Random(seed)
    for _ in range(steps):
        yield compute_s * random_.uniform(1 - jitter, 1 + jitter)


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
        RankError: A rank failed, or took too long.
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

    def both(of: Of) -> Pair:
        return of_alone(of, unstaggered, alone), of_alone(of, staggered, alone)

    means = both(statistics.fmean)
    return Jobs(
        link=link,
        port=port,
        size_bytes=SIZE_BYTES,
        alone_s=first.usual_s,
        communication=first.communication,
        jitter=JITTER,
        unstaggered=means[0],
        staggered=means[1],
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
        jobs = [stack.enter_context(started_ranks(bed, f"{__name__}:Job")) for _ in seeds]
        _all(jobs, "open", schedule=schedule)
        if compute_s is None:
            compute_s = float(jobs[0].ask("measure")["seconds"])
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


def _all(jobs: Sequence[Ranks], what: str, **given: Any) -> None:
    """Have all jobs do something at the same time."""
    for job in jobs:
        job.tell(what, **given)
    for job in jobs:
        job.hear(what)
