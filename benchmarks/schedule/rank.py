"""One rank: `python -m benchmarks.schedule.rank SOCKET KIND SECONDS`.

The environment says who it is and where ranks meet, as torchrun's does. SOCKET is the driver's,
SECONDS the longest wait. What the driver may ask for are the methods of its kind in `KINDS`.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.hosts.wire import Wire
from benchmarks.paired import overhead
from benchmarks.schedule.hosts import JOB, PUSHING, TRAINERS
from benchmarks.schedule.job import Job
from benchmarks.schedule.methods import EXCHANGED, METHODS
from benchmarks.schedule.model import WIDTH
from benchmarks.schedule.pipeline import measured
from benchmarks.schedule.pushing import Pushing
from benchmarks.schedule.trainers import Alone, Overlapped, Trainer, trainer_of
from compressa.config import load_config
from compressa.engine.start import link_file
from compressa.hooks import Handle
from compressa.link.measure import opened

Told = dict[str, Any]

_FIT_S = 0.01


def _nothing(text: str) -> None:
    pass


class Training:
    """What a rank that trains can be asked for."""

    def __init__(self) -> None:
        self._trainers: dict[str, Trainer] = {}
        self._alone = Alone()
        self._batch = torch.zeros(1, WIDTH)

    def size(self, batch: int) -> None:
        """Have batches be so large from now on."""
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batch = torch.randn(batch, WIDTH, generator=generator)
        self._alone.step(self._batch)

    def fit(self, path: str) -> None:
        """Write what the link is like."""
        with opened(load_config({"exchange": {"transport": "tcp"}}), _FIT_S, _nothing) as run:
            found = run.fit(candidates=())
        if run.rank == 0:
            link_file.write(Path(path), found)

    def open(self, compressor: str, methods: list[str], link: str | None) -> None:
        """Set methods up, in place of those before."""
        self.close()
        for name in methods:
            self._trainers[name] = trainer_of(METHODS[name], compressor, link)

    def profile(self, method: str, path: str) -> None:
        """Write what the last steps of a method were like."""
        self._handle(method).save_profile(path)

    def trace(self, method: str, path: str, pairs: int) -> Told:
        """Tell what it costs to record a trace."""
        trainer = self._trainers[method]

        def step() -> None:
            trainer.step(self._batch)

        found = overhead(step, self._handle(method).trace, Path(path), pairs=pairs, steps=2)
        trainer.settle()
        return asdict(found)

    def pipeline(self, compressor: str, rounds: int) -> Told:
        """Tell what units take, pipelined and one after the other."""
        return asdict(measured(compressor, rounds))

    def warm(self, method: str) -> None:
        """Train until a method is as it will be."""
        self._train(self._trainers[method], METHODS[method].warm_steps)

    def train(self, method: str, steps: int) -> Told:
        """Train, and tell how long a step took in the middle of it."""
        trainer = self._trainers[method]
        dist.barrier()
        trainer.step(self._batch)
        return {"step_s": self._train(trainer, steps)}

    def compute(self, steps: int) -> Told:
        """Tell how long a step and its forward pass take without communication."""
        dist.barrier()
        self._alone.step(self._batch)
        stepped = [self._alone.step(self._batch) for _ in range(steps)]
        return {
            "step_s": statistics.fmean(step.step_s for step in stepped),
            "forward_s": statistics.fmean(step.forward_s for step in stepped),
        }

    def communicate(self, steps: int) -> Told:
        """Tell how long communication takes without computing."""
        trainer = self._trainers[EXCHANGED]
        assert isinstance(trainer, Overlapped)
        dist.barrier()
        trainer.exchange()
        return {"step_s": statistics.fmean(trainer.exchange() for _ in range(steps))}

    def close(self) -> None:
        """End what was set up."""
        for trainer in self._trainers.values():
            trainer.settle()
            trainer.close()
        self._trainers.clear()
        gc.collect()

    def _handle(self, method: str) -> Handle:
        handle = self._trainers[method].handle
        assert handle is not None, "of ours only"
        return handle

    def _train(self, trainer: Trainer, steps: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(steps):
            trainer.step(self._batch)
        seconds = time.perf_counter() - begin_s
        trainer.settle()
        return seconds / steps


KINDS: Mapping[str, Callable[[], object]] = {TRAINERS: Training, JOB: Job, PUSHING: Pushing}


def _take_core(rank: int) -> None:
    """Stay on a core, as a host with one would.

    Left to the kernel, the network work of both hosts gathers on one core at times, and a step
    takes as long as the rank that computes there.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def main(path: str, kind: str, deadline_s: float) -> None:
    """Do what the driver asks for until it has no more."""
    if kind == TRAINERS:
        _take_core(int(os.environ["RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    rank = KINDS[kind]()

    def answer(message: Any) -> Told | None:
        what, given = message
        told: Told | None = getattr(rank, what)(**given)
        return told

    Wire(path, dist.get_rank()).serve(torch.__version__, answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stderr.flush()
    os._exit(0)
