"""Two jobs on one bottleneck link: alone, beside each other, and in turns.

Both have a rank on each of two hosts, whose link is what they share, and each computes for half of
its period when it is alone. Computing is a timed wait: see `job`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from compressa.bench.network.job import Work
from compressa.bench.network.processes import ended, hear, started, tell
from compressa.testbed import Testbed, Watch, burstiness

_FLOAT_BYTES = 4
_SETTLING = 0.2  # part of the steps until the jobs have found their turns
_PATIENCE_S = 120.0
_FIRST_PORT = 29_610


@dataclass(frozen=True)
class Steps:
    """How long the steps of a job took.

    Attributes:
        compute_s: The timed wait in each.
        steps_s: By step, on the slowest rank.
    """

    compute_s: float
    steps_s: tuple[float, ...]

    @property
    def usual_s(self) -> float:
        """The mean of a step, once the jobs have settled."""
        return statistics.fmean(self.steps_s[round(_SETTLING * len(self.steps_s)) :])


@dataclass(frozen=True)
class SharedLink:
    """What was measured.

    Attributes:
        alone: The first job, without the other.
        unstaggered: Both at a time.
        staggered: Both at a time, in turns.
        burstiness: Peak over mean of what the first host sends in windows of 10 ms, in these
            three; None where nothing counts it.
    """

    alone: Steps
    unstaggered: tuple[Steps, ...]
    staggered: tuple[Steps, ...]
    burstiness: tuple[float | None, ...]

    def slowdowns(self, jobs: tuple[Steps, ...]) -> list[float]:
        """Each job's step as a multiple of the one that is alone."""
        return [job.usual_s / self.alone.usual_s for job in jobs]


def measure(
    bed: Testbed, size_bytes: int, steps: int = 20, exchange: Mapping[str, Any] | None = None
) -> SharedLink:
    """Measure two jobs on the link between the first two hosts.

    Args:
        bed: The hosts.
        size_bytes: Bytes of float32 gradients in each job's step.
        steps: How many steps are timed.
        exchange: Options of compressa's configuration, section exchange.

    Raises:
        TransportError: A rank failed, or took too long.
    """
    options = dict(exchange or {})
    elems = size_bytes // _FLOAT_BYTES

    def work(compute_s: float | None, schedule: Mapping[str, Any]) -> Work:
        return Work(elems, compute_s, steps, {"exchange": options, "schedule": dict(schedule)})

    (alone,), first = _run(bed, [work(None, {})])
    plain, second = _run(bed, [work(alone.compute_s, {})] * 2)
    with tempfile.TemporaryDirectory(prefix="compressa-share-") as folder:
        share = {"name": "bottleneck", "at": f"file://{folder}"}
        turns, third = _run(bed, [work(alone.compute_s, {"share": share})] * 2)
    return SharedLink(alone, plain, turns, (first, second, third))


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
            tell(ranks, "go")
            results = tuple(_steps(hear(job, _PATIENCE_S)) for job in jobs)
        ended(ranks, _PATIENCE_S)
    sent = [(at_s, told[0].tx_bytes) for at_s, told in counters.readings if told is not None]
    return results, burstiness(sent) if sent else None


def _steps(lines: list[str]) -> Steps:
    told = [json.loads(line) for line in lines]
    times_s = zip(*(each["steps_s"] for each in told), strict=True)
    return Steps(told[0]["compute_s"], tuple(max(several) for several in times_s))
