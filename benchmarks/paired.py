"""What something costs: the same steps with and without, in turn, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from compressa.link.texts import ms_text
from harness.records import Positive, Row


class Overhead(Row):
    """Steps with something, as multiples of the same steps without.

    `step_s` is the median time of a step without. `ratio` is the median, over pairs of neighbours,
    of the time with over the time without, `ratio_low` and `ratio_high` are the quartiles of those,
    and `cpu_ratio` is the median of the processor time of all threads.
    """

    step_s: Positive
    ratio: Positive
    ratio_low: Positive
    ratio_high: Positive
    cpu_ratio: Positive


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
        step_s=statistics.median(wall[False]),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        cpu_ratio=statistics.median(_ratios(cpu)),
    )


def _ratios(times_s: Mapping[bool, list[float]]) -> list[float]:
    return [on / off for on, off in zip(times_s[True], times_s[False], strict=True)]


def columns(off: str, on: str) -> dict[str, Callable[[Any], str]]:
    """Return columns of a table of `Overhead`.

    Args:
        off: How titles name steps without.
        on: How they name steps with.
    """
    return {
        f"step {off}, ms": lambda row: ms_text(row.step_s),
        on: lambda row: f"{row.ratio:.3f}",
        "quartiles": lambda row: f"{row.ratio_low:.3f} to {row.ratio_high:.3f}",
        "processor time": lambda row: f"{row.cpu_ratio:.3f}",
    }
