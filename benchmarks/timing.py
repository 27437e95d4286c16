"""How long calls take: samples, and their median and quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

Call = Callable[[], object]
Clock = Callable[[], float]


def _pause() -> None:
    time.sleep(5e-3)


@dataclass(frozen=True)
class Samples:
    """Numbers that were measured alike.

    Attributes:
        values: At least one.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    @property
    def p20(self) -> float:
        """One in five is below."""
        return float(np.quantile(self.values, 0.2))

    @property
    def p80(self) -> float:
        """One in five is above."""
        return float(np.quantile(self.values, 0.8))

    def map(self, change: Callable[[float], float]) -> Samples:
        """Return samples in other units."""
        return Samples(tuple(change(value) for value in self.values))

    def spread(self) -> dict[str, float]:
        """Return what a `Spread` has of seconds."""
        return {"median_s": self.median, "p20_s": self.p20, "p80_s": self.p80}


@dataclass(frozen=True)
class Stopwatch:
    """Times calls.

    Args:
        clock: Gives seconds.
        least_s: A sample lasts at least so long; quick calls are repeated within it.
        pause: Waits until torch's threads sleep; they spin for some milliseconds after an
            operation, and take a core from whatever comes next.
    """

    clock: Clock = time.perf_counter
    least_s: float = 1e-3
    pause: Call = _pause

    def sample(self, call: Call, loops: int = 1) -> float:
        """Return the seconds that a call takes, as the mean of `loops` in a row."""
        begin_s = self.clock()
        for _ in range(loops):
            call()
        return (self.clock() - begin_s) / loops

    def loops(self, call: Call) -> int:
        """Return how many calls in a row make a sample long enough."""
        loops = 1
        while (taken_s := self.sample(call, loops) * loops) < self.least_s:
            missing = self.least_s / max(taken_s, self.least_s / 1000)
            loops *= max(2, min(100, round(1.2 * missing)))
        return loops


@dataclass(frozen=True)
class Interleaved:
    """A call's times, and those of the yardstick before, between and after.

    Attributes:
        call_s: One sample per repeat.
        yardstick_s: One sample more.
    """

    call_s: Samples
    yardstick_s: Samples


def interleave(watch: Stopwatch, call: Call, yardstick: Call, repeats: int) -> Interleaved:
    """Time a call and its yardstick in turns, so that a noisy machine disturbs both alike.

    Args:
        watch: Tells the time.
        call: What is timed.
        yardstick: What it is compared with.
        repeats: Samples of the call; the yardstick gets one more.
    """
    loops, yard_loops = watch.loops(call), watch.loops(yardstick)
    call_s: list[float] = []
    yardstick_s: list[float] = []
    for left in range(repeats, -1, -1):
        watch.pause()
        yardstick_s.append(watch.sample(yardstick, yard_loops))
        if left:
            call_s.append(watch.sample(call, loops))
    return Interleaved(Samples(tuple(call_s)), Samples(tuple(yardstick_s)))


def affordable(watch: Stopwatch, call: Call, repeats: int, budget_s: float) -> int:
    """Warm a call up, and return how often it can be repeated: at most `repeats`, once at least.

    The first call never counts: memory that is new to the process is slow.

    Args:
        watch: Tells the time.
        call: It is called once here.
        repeats: So often at most.
        budget_s: Seconds for all of them.
    """
    return max(1, min(repeats, int(budget_s / max(watch.sample(call), watch.least_s))))


def limit_ratio(bus_bytes: float, yardstick_bytes: float, times: Interleaved) -> float:
    """Return the time that the memory bus needs at least, over the time that was taken.

    Args:
        bus_bytes: What must cross the bus in a call.
        yardstick_bytes: What crosses it in a call of the yardstick.
        times: Of both.
    """
    bandwidth = yardstick_bytes / times.yardstick_s.median
    return bus_bytes / bandwidth / times.call_s.median
