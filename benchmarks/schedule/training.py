"""What a rank that trains can be asked for: ways to train, side by side, each with its own model.

The models are perceptrons of equal layers, as large as their communication should be, and all are
trained on batches of one size.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import overhead
from benchmarks.schedule.costs import unit_costs
from benchmarks.schedule.plan import EXCHANGED, METHODS, Method
from compressa.config import load_config
from compressa.engine.start import link_file
from compressa.hooks import Handle, register_comm_hook
from compressa.link.measure import opened
from compressa.link.operations import nothing
from compressa.overlap import OverlappedDataParallel
from compressa.testbed import Testbed
from harness.rank import OWN_CORE
from harness.ranks import Ranks
from harness.start import started_ranks
from harness.wire import Wire

LAYERS = 48
WIDTH = 150
ELEMS = LAYERS * WIDTH * (WIDTH + 1)
"""Of a model's parameters: 4.3 MB of float32."""

KEPT_BYTES = 1 << 25
"""Larger pieces of memory go back to the system in each step: the most that malloc can be told."""

# Memory that is given back and asked for again in each step takes the kernel a sixth of it, and
# whether that happens depends on what else is allocated meanwhile: none is given back here.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}
_RATE, _MOMENTUM = 0.01, 0.9
_FIT_S = 0.01


def started_trainers(bed: Testbed) -> Ranks:
    """Start a rank that trains on each host, to be used as a context manager.

    Raises:
        RankError: They do not start.
    """
    return started_ranks(bed, f"{__name__}:Training", OWN_CORE, env=KEPT)


class Stepped(NamedTuple):
    """How long a training step took, and its forward pass alone."""

    step_s: float
    forward_s: float


@dataclass(frozen=True)
class Trainer:
    """Trains a model of its own; its methods are called on all ranks.

    Attributes:
        forward: The model, as it is called.
        optimizer: Its.
        handle: Of our engine, where there is one.
        settle: Waits for all that goes on after a step.
        close: Ends what it has started.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    handle: Handle | None = None
    settle: Callable[[], object] = nothing
    close: Callable[[], object] = nothing

    def step(self, batch: torch.Tensor) -> Stepped:
        """Do a training step; its communication may go on afterwards.

        Args:
            batch: float32, of `WIDTH` columns.
        """
        begin_s = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.forward(batch).square().mean()
        forward_s = time.perf_counter() - begin_s
        loss.backward()
        self.optimizer.step()
        return Stepped(time.perf_counter() - begin_s, forward_s)

    def exchange(self) -> float:
        """Exchange all gradients of our engine, all of which are there at once.

        Returns:
            The seconds that takes.
        """
        self.settle()
        assert self.handle is not None, "of ours only"
        gradients = {p.name: torch.ones(p.shape) for p in self.handle.engine.parameters}
        begin_s = time.perf_counter()
        self.handle.wait([self.handle.submit(gradients)])
        return time.perf_counter() - begin_s


def alone() -> Trainer:
    """Return what computes, and communicates nothing: the gradients are this rank's own."""
    return Trainer(*_model())


def trainer_of(method: Method, compressor: str, link: str | None) -> Trainer:
    """Set a method up. Collective.

    Args:
        method: Whose.
        compressor: By name.
        link: The file with the link's figures, if it was measured.
    """
    module, optimizer = _model()
    if method.kind == "overlap":
        overlapped = OverlappedDataParallel(module, optimizer, method.config(compressor, link))
        handle = overlapped.handle
        return Trainer(overlapped, optimizer, handle, overlapped.flush, overlapped.close)
    model = DistributedDataParallel(module, bucket_cap_mb=method.bucket_cap_mb, init_sync=False)
    if method.kind == "hook":
        handle = register_comm_hook(model, method.config(compressor, link))
        return Trainer(model, optimizer, handle, close=handle.close)
    if compressor == "bf16":
        # As many bytes: torch's hook for bf16 is for GPUs only.
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return Trainer(model, optimizer)


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)  # the same values on every rank
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    module = nn.Sequential(*layers)
    return module, torch.optim.SGD(module.parameters(), _RATE, _MOMENTUM)


class Training:
    """What a rank that trains can be asked for, each thing of all ranks together."""

    def __init__(self, wire: Wire) -> None:
        self._trainers: dict[str, Trainer] = {}
        self._alone = alone()
        self._batch = torch.zeros(1, WIDTH)

    def size(self, batch: int) -> None:
        """Have batches be so large from now on."""
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batch = torch.randn(batch, WIDTH, generator=generator)
        self._alone.step(self._batch)

    def fit(self, path: str) -> None:
        """Write what the link is like."""
        config = load_config({"exchange": {"transport": "tcp"}})
        with opened(config, _FIT_S, lambda text: None) as run:
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

    def trace(self, method: str, path: str, pairs: int) -> dict[str, float]:
        """Tell what it costs to record a trace: the fields of an `Overhead`."""
        trainer, handle = self._trainers[method], self._handle(method)

        def step() -> None:
            trainer.step(self._batch)

        def switch(on: bool) -> None:
            handle.trace(path if on else None)

        found = overhead(step, switch, pairs=pairs, steps=2)
        trainer.settle()
        return found.model_dump()

    def units(self, compressor: str, rounds: int) -> dict[str, float]:
        """Tell what units take; see `unit_costs`."""
        return unit_costs(compressor, rounds)

    def warm(self, method: str) -> None:
        """Train until a method is as it will be."""
        self._train(self._trainers[method], METHODS[method].warm_steps)

    def train(self, method: str, steps: int) -> dict[str, float]:
        """Train, and tell how long a step took in the middle of it."""
        trainer = self._trainers[method]
        dist.barrier()
        trainer.step(self._batch)
        return {"step_s": self._train(trainer, steps)}

    def compute(self, steps: int) -> dict[str, Any]:
        """Tell how long a step and its forward pass take without communication, on average."""
        dist.barrier()
        self._alone.step(self._batch)
        stepped = [self._alone.step(self._batch) for _ in range(steps)]
        return Stepped(*map(statistics.fmean, zip(*stepped, strict=True)))._asdict()

    def communicate(self, steps: int) -> dict[str, float]:
        """Tell how long communication takes without computing."""
        trainer = self._trainers[EXCHANGED]
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
