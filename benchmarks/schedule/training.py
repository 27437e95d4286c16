"""What a rank that trains can be asked for: trainers, side by side, on batches of one size."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.paired import overhead
from benchmarks.schedule.pipeline import measured
from benchmarks.schedule.plan import EXCHANGED, METHODS
from benchmarks.schedule.trainers import WIDTH, Alone, Overlapped, Trainer, trainer_of
from compressa.config import load_config
from compressa.engine.start import link_file
from compressa.hooks import Handle
from compressa.link.measure import opened
from compressa.testbed import Testbed
from harness.rank import OWN_CORE
from harness.ranks import Ranks
from harness.start import started_ranks
from harness.wire import Wire

Told = dict[str, Any]

KEPT_BYTES = 1 << 25
"""Larger pieces of memory go back to the system in each step: the most that malloc can be told."""

# Memory that is given back and asked for again in each step takes the kernel a sixth of it, and
# whether that happens depends on what else is allocated meanwhile: none is given back here.
_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}
_FIT_S = 0.01


def started_trainers(bed: Testbed) -> Ranks:
    """Start a rank that trains on each host, to be used as a context manager."""
    return started_ranks(bed, f"{__name__}:Training", OWN_CORE, env=_KEPT)


def _nothing(text: str) -> None:
    pass


class Training:
    """What such a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
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
        trainer, handle = self._trainers[method], self._handle(method)

        def step() -> None:
            trainer.step(self._batch)

        def switch(on: bool) -> None:
            handle.trace(path if on else None)

        found = overhead(step, switch, pairs=pairs, steps=2)
        trainer.settle()
        return asdict(found)

    def pipeline(self, compressor: str, rounds: int) -> Told:
        """Tell what units take, pipelined and one after the other."""
        return measured(compressor, rounds)

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
