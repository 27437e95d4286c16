"""Two jobs on one bottleneck link: alone, beside each other, and in turns.

Both have a rank on each of two hosts, whose link is what they share, and each computes for half of
its period when it is alone. Computing is a timed wait: see `job`. Both begin their first step at
the same moment, and no two of their steps compute for equally long, whether in turns or not.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from compressa.bench.network.job import Work
from compressa.bench.network.processes import ended, hear, started, tell
from compressa.testbed import Testbed, Watch, burstiness

_FLOAT_BYTES = 4
_JOBS = 2
_SETTLING = 0.2  # part of the steps until the jobs have found their turns
_PATIENCE_S = 120.0
_SOON_S = 0.1  # until then all ranks have heard when to begin
_FIRST_PORT = 29_610


@dataclass(frozen=True)
class Steps:
    """How long the steps of a job took.

    Attributes:
        compute_s: What a step computes on average: the timed wait.
        steps_s: By step, on the slowest rank.
        sends_s: How much of each was communication, waiting for a turn included.
    """

    compute_s: float
    steps_s: tuple[float, ...]
    sends_s: tuple[float, ...]

    @property
    def settled_s(self) -> tuple[float, ...]:
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


@dataclass(frozen=True)
class Slowdown:
    """A job's steps as multiples of its mean step alone.

    Attributes:
        mean: Of them all: of the time that the job takes.
        median: Of them.
        worst: Of them.
    """

    mean: float
    median: float
    worst: float


@dataclass(frozen=True)
class SharedLink:
    """What was measured.

    Attributes:
        alone: Each job, without the other.
        unstaggered: Both at a time.
        staggered: Both at a time, in turns.
        burstiness: Peak over mean of what the first host sends in windows of 10 ms: the first job
            alone, unstaggered, staggered; None where nothing counts it.
    """

    alone: tuple[Steps, ...]
    unstaggered: tuple[Steps, ...]
    staggered: tuple[Steps, ...]
    burstiness: tuple[float | None, ...]

    def slowdowns(self, jobs: tuple[Steps, ...]) -> list[Slowdown]:
        """Each job's steps as multiples of its own alone."""
        return [
            _slowdown(job.settled_s, own.usual_s) for job, own in zip(jobs, self.alone, strict=True)
        ]


def _slowdown(steps_s: Sequence[float], alone_s: float) -> Slowdown:
    found = statistics.fmean(steps_s), statistics.median(steps_s), max(steps_s)
    return Slowdown(*(seconds / alone_s for seconds in found))


def measure(
    bed: Testbed,
    size_bytes: int,
    steps: int = 20,
    *,
    jitter: float = 0.0,
    exchange: Mapping[str, Any] | None = None,
) -> SharedLink:
    """Measure two jobs on the link between the first two hosts.

    Args:
        bed: The hosts.
        size_bytes: Bytes of float32 gradients in each job's step.
        steps: How many steps are timed.
        jitter: See `Work`.
        exchange: Options of compressa's configuration, section exchange.

    Raises:
        TransportError: A rank failed, or took too long.
    """
    options = dict(exchange or {})
    elems = size_bytes // _FLOAT_BYTES

    def works(compute_s: float | None, **schedule: Any) -> list[Work]:
        config = {"exchange": options, "schedule": schedule}
        return [Work(elems, compute_s, jitter, seed, steps, config) for seed in range(_JOBS)]

    (first,), bursts = _run(bed, works(None)[:1])
    compute_s = first.compute_s
    (second,), _ = _run(bed, works(compute_s)[1:])
    plain, more = _run(bed, works(compute_s))
    with tempfile.TemporaryDirectory(prefix="compressa-share-") as folder:
        share = {"name": "bottleneck", "at": f"file://{folder}"}
        turns, most = _run(bed, works(compute_s, share=share))
    return SharedLink((first, second), plain, turns, (bursts, more, most))


def _run(bed: Testbed, works: list[Work]) -> tuple[tuple[Steps, ...], float | None]:
    """Run jobs side by side; they begin together."""
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(bed, "job", (0, 1), [work.text()] * 2, _FIRST_PORT + job))
            for job, work in enumerate(works)
        ]
        ranks = [rank for job in jobs for rank in job]
        hear(ranks, _PATIENCE_S)
        bed.counters()  # opens them
        with Watch(bed.counters) as counters:
            tell(ranks, str(time.monotonic() + _SOON_S))
            results = tuple(_steps(hear(job, _PATIENCE_S)) for job in jobs)
        ended(ranks, _PATIENCE_S)
    sent = [(at_s, told[0].tx_bytes) for at_s, told in counters.readings if told is not None]
    return results, burstiness(sent) if sent else None


def _steps(lines: list[str]) -> Steps:
    told = [json.loads(line) for line in lines]
    steps_s, sends_s = (
        tuple(max(several) for several in zip(*(each[what] for each in told), strict=True))
        for what in ("steps_s", "sends_s")
    )
    return Steps(told[0]["compute_s"], steps_s, sends_s)
