"""What something costs: the same steps with and without, in turn, in one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.hooks import Handle, register_comm_hook

WIDTH = 1024
_BATCH = 64
_WARM_STEPS, _STEPS = 3, 3


@dataclass(frozen=True)
class Overhead:
    """Steps with and without.

    Attributes:
        off_s: Median time of a step without.
        on_s: Median time of a step with.
        ratio: Median, over pairs of neighbours, of the time with over the time without.
        ratio_low: The lower quartile of those.
        ratio_high: The upper quartile.
        cpu_ratio: As `ratio`, of the processor time of all threads.
    """

    off_s: float
    on_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    cpu_ratio: float

    @property
    def text(self) -> str:
        """What it costs, in words."""
        return (
            f"{self.ratio:.3f} times as long ({self.ratio_low:.3f} to {self.ratio_high:.3f}; "
            f"processor time {self.cpu_ratio:.3f})"
        )


def overhead(
    step: Callable[[], object],
    switch: Callable[[bool], object],
    *,
    pairs: int = 20,
    steps: int = 5,
) -> Overhead:
    """Measure it; all ranks at the same time.

    The first step after each change does not count, since it may wait for whoever still does what
    the change has left, such as writing what was recorded.

    Args:
        step: One step of training.
        switch: Has the next steps be with, or without.
        pairs: How often to compare, at least 2; the order within a pair alternates.
        steps: How many steps to time together.
    """
    wall: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for on in (bool(pair % 2), not pair % 2):
            switch(on)
            step()
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            wall[on].append((time.perf_counter() - wall_s) / steps)
            cpu[on].append((time.process_time() - cpu_s) / steps)
    switch(False)
    low, middle, high = statistics.quantiles(_ratios(wall), n=4)
    return Overhead(
        off_s=statistics.median(wall[False]),
        on_s=statistics.median(wall[True]),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        cpu_ratio=statistics.median(_ratios(cpu)),
    )


def _ratios(times_s: Mapping[bool, list[float]]) -> list[float]:
    return [on / off for on, off in zip(times_s[True], times_s[False], strict=True)]


class Trained(NamedTuple):
    """A model with a hook.

    Attributes:
        step: Trains a step.
        handle: The hook's.
    """

    step: Callable[[], None]
    handle: Handle


def perceptron(settings: Mapping[str, Any], layers: int) -> Trained:
    """Return a perceptron of square layers with a hook of this configuration. Collective.

    Args:
        settings: The configuration.
        layers: How many, of `WIDTH` x `WIDTH` weights each, float32.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    )
    handle = register_comm_hook(model, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(_BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return Trained(step, handle)


def compared(off: Trained, on: Trained, *, pairs: int) -> Overhead:
    """Compare the steps of two models, which are closed then. Collective.

    Args:
        off: What is trained without.
        on: What is trained with.
        pairs: How often to compare times.
    """
    now = off

    def choose(with_it: bool) -> None:
        nonlocal now
        dist.barrier()
        now = on if with_it else off

    for one in (off, on):
        for _ in range(_WARM_STEPS):
            one.step()
    found = overhead(lambda: now.step(), choose, pairs=pairs, steps=_STEPS)
    for one in (off, on):
        one.handle.close()
    return found


def report(lines: Iterable[str]) -> None:
    """Print lines on rank 0, as they are measured by the ranks that torchrun has started.

    Args:
        lines: All ranks work out all of them.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for line in lines:
        gc.collect()
        if dist.get_rank() == 0:
            print(line, flush=True)
    dist.destroy_process_group()
