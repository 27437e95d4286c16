"""What something costs: the same steps with and without, in turn, in one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


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
    trace: Callable[[Path | None], object],
    path: Path,
    *,
    pairs: int = 20,
    steps: int = 5,
) -> Overhead:
    """Measure it; all ranks at the same time.

    What is recorded is written between the steps that count, and the first step after each change
    does not, since it waits for whoever still writes.

    Args:
        step: One step of training.
        trace: `Handle.trace`.
        path: Where traces may be written.
        pairs: How often to compare, at least 2; the order within a pair alternates.
        steps: How many steps to time together.
    """
    wall: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for on in (bool(pair % 2), not pair % 2):
            trace(path if on else None)
            step()
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            wall[on].append((time.perf_counter() - wall_s) / steps)
            cpu[on].append((time.process_time() - cpu_s) / steps)
    trace(None)
    ratios = [on / off for on, off in zip(wall[True], wall[False], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Overhead(
        off_s=statistics.median(wall[False]),
        on_s=statistics.median(wall[True]),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        cpu_ratio=statistics.median(
            on / off for on, off in zip(cpu[True], cpu[False], strict=True)
        ),
    )


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
