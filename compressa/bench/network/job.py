"""One rank of a job that computes and communicates: `python -m compressa.bench.network.job TEXT`.

TEXT is a `Work` as JSON; the environment says who the rank is and where the job's ranks meet. There
is no model: computing is a wait of about a given time, since several jobs would otherwise fight for
the processors of one machine, and communicating is the engine's own step over parameters of a given
size. A rank writes "ready" when it has warmed up, reads when to begin (a time of the clock that all
processes of a machine have in common), and then writes how long its steps took.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import assign, load_config
from compressa.engine.opening import start_engine
from compressa.parameters import ParameterInfo

_PARAMETERS = 8
_WARM_STEPS = 3


@dataclass(frozen=True)
class Work:
    """What a job does.

    Attributes:
        elems: Elements of its gradients, all together.
        compute_s: How long a step computes before its gradients are there; None for as long as its
            communication takes, which is then measured first.
        jitter: A step computes for up to this share longer or shorter, at random, as real ones do.
        seed: Of the jitter, which is the same on all ranks.
        steps: How many steps are timed; a third more follow, so that other jobs are not alone
            while theirs are timed.
        config: Of compressa.
        deadline_s: Longest wait for the job's other ranks to start.
    """

    elems: int
    compute_s: float | None
    jitter: float
    seed: int
    steps: int
    config: dict[str, Any]
    deadline_s: float = 60.0

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    def waits_s(self, compute_s: float) -> Iterator[float]:
        """Yield how long each step computes, those after the timed ones included."""
        random_ = random.Random(self.seed)
        for _ in range(self.steps + self.steps // 3):
            yield compute_s * random_.uniform(1 - self.jitter, 1 + self.jitter)


class Job:
    """The rank's engine, and gradients for it.

    Args:
        work: What the job does.
    """

    def __init__(self, work: Work) -> None:
        each = work.elems // _PARAMETERS
        self._parameters = [ParameterInfo(i, f"p{i}", (each,)) for i in range(_PARAMETERS)]
        config = load_config(work.config)
        world, compressors = dist.group.WORLD, assign(config, self._parameters)
        assert world is not None
        self._engine = start_engine(
            config, world, self._parameters, compressors, caller="a benchmark"
        )
        self._gradients = {p.name: torch.ones(each) for p in self._parameters}
        self._step = 0

    def step(self, compute_s: float) -> float:
        """Compute, communicate; return how long the latter took."""
        time.sleep(compute_s)
        begin_s = time.perf_counter()
        self._engine.wait([self._engine.submit(self._gradients, step=self._step)])
        self._step += 1
        return time.perf_counter() - begin_s

    def communication_s(self) -> float:
        """Measure how long communication takes, on the slowest rank."""
        seconds = sorted(self.step(0.0) for _ in range(2 * _WARM_STEPS + 1))[_WARM_STEPS]
        slowest = torch.tensor([seconds])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def main(text: str) -> None:
    """Work as told."""
    torch.set_num_threads(1)
    work = Work(**json.loads(text))
    dist.init_process_group("gloo", timeout=timedelta(seconds=work.deadline_s))
    job = Job(work)
    for _ in range(_WARM_STEPS):
        job.step(0.0)
    compute_s = job.communication_s() if work.compute_s is None else work.compute_s
    print("ready", flush=True)
    begin_s = float(sys.stdin.readline())
    time.sleep(max(0.0, begin_s - time.monotonic()))
    steps_s, sends_s = [], []
    for wait_s in work.waits_s(compute_s):
        sends_s.append(job.step(wait_s))
        steps_s.append(time.monotonic() - begin_s)
        begin_s += steps_s[-1]
    told = {"steps_s": steps_s[: work.steps], "sends_s": sends_s[: work.steps]}
    print(json.dumps({"compute_s": compute_s, **told}), flush=True)
    job.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # torch's threads may outlive the interpreter, and nothing is left to be done
