"""One rank of a job that computes and communicates.

There is no model: computing is a wait of about a given time, since several jobs would otherwise
fight for the processors of one machine, and communicating is the engine's own step over parameters
of a given size.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engines import opened_engine

_PARAMETERS = 8
_WARM_STEPS = 3


class Job:
    """What a rank of a job can be asked for."""

    def open(self, elems: int, schedule: Mapping[str, Any]) -> None:
        """Open an engine, and warm up.

        Args:
            elems: Elements of the job's gradients, all together.
            schedule: Section of the configuration.
        """
        each = elems // _PARAMETERS
        sizes = {f"p{i}": each for i in range(_PARAMETERS)}
        self._engine = opened_engine({"schedule": schedule}, sizes)
        self._gradients = {name: torch.ones(each) for name in sizes}
        self._step = 0
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
        self._engine.wait([self._engine.submit(self._gradients, step=self._step)])
        self._step += 1
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
