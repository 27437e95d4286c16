"""One rank: `python -m compressa.bench.schedule.rank SOCKET SECONDS`.

The environment says who it is and where ranks meet, as torchrun's does. SOCKET is the driver's,
SECONDS the longest wait. What the driver may ask for is a method of `Rank`.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compressa.bench.network.wire import Wire
from compressa.bench.schedule.methods import EXCHANGED, METHODS, WARM_STEPS
from compressa.bench.schedule.model import WIDTH
from compressa.bench.schedule.trainers import Alone, Overlapped, Trainer, trainer_of

Told = dict[str, Any]


class Rank:
    """What is set up on this rank."""

    def __init__(self) -> None:
        self._trainers: dict[str, Trainer] = {}
        self._alone = Alone()
        self._batch = torch.zeros(1, WIDTH)

    def size(self, batch: int) -> Told:
        """Have batches be so large from now on."""
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batch = torch.randn(batch, WIDTH, generator=generator)
        self._alone.step(self._batch)
        return {}

    def open(self, compressor: str, methods: list[str]) -> Told:
        """Set methods up, in place of those before."""
        self.close()
        for name in methods:
            self._trainers[name] = trainer_of(METHODS[name], compressor)
        return {}

    def warm(self, method: str) -> Told:
        """Train until a method is as it will be."""
        self._train(self._trainers[method], WARM_STEPS)
        return {}

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

    def close(self) -> Told:
        """End what was set up."""
        for trainer in self._trainers.values():
            trainer.settle()
            trainer.close()
        self._trainers.clear()
        gc.collect()
        return {}

    def _train(self, trainer: Trainer, steps: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(steps):
            trainer.step(self._batch)
        seconds = time.perf_counter() - begin_s
        trainer.settle()
        return seconds / steps


def main(path: str, deadline_s: float) -> None:
    """Do what the driver asks for until it has no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    rank = Rank()
    asked: Mapping[str, Callable[..., Told]] = {
        "size": rank.size,
        "open": rank.open,
        "warm": rank.warm,
        "train": rank.train,
        "compute": rank.compute,
        "communicate": rank.communicate,
        "close": rank.close,
    }

    def answer(message: Any) -> dict[str, Any]:
        what, given = message
        return {"told": asked[what](**given)}

    Wire(path, dist.get_rank()).converse(torch.__version__, answer)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stderr.flush()
    os._exit(0)
