"""Ratios: what the steps of a case are multiples of, all within one run.

F is the step of computing alone, W the bytes on the busiest link over its line rate, and K the
bytes that our kernels must move over the measured bandwidth of the memory bus. A ratio is the
median of those of the rounds, since what was measured side by side was disturbed alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from benchmarks.steps.plan import ALONE
from benchmarks.steps.records import Case, Step


def ratio(ones_s: Iterable[float], others_s: Iterable[float]) -> float:
    """Return the median of the quotients, round by round.

    Example:
        >>> ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
        2.0
    """
    return median(one / other for one, other in zip(ones_s, others_s, strict=True))


@dataclass(frozen=True)
class Ratios:
    """Those of a case.

    Attributes:
        case: It.
        steps: Its; that of computing alone among them.
    """

    case: Case
    steps: Sequence[Step]

    @cached_property
    def by_method(self) -> dict[str, Step]:
        """Steps by name of the method."""
        return {step.method: step for step in self.steps}

    @property
    def alone(self) -> Step:
        """F."""
        return self.by_method[ALONE.name]

    def wire_s(self, step: Step) -> float:
        """W."""
        return step.link_bytes / self.case.line_bytes_per_s

    def kernels_s(self, step: Step) -> float | None:
        """K; None where it is not stated."""
        return None if step.kernel_bytes is None else step.kernel_bytes / self.case.bus_bytes_per_s

    def of_work(self, step: Step) -> float | None:
        """Return the step over F + K."""
        work_s = self._work_s(step)
        return None if work_s is None else ratio(step.rounds_s, work_s)

    def of_bound(self, step: Step) -> float | None:
        """Return the step over max(F + K, W)."""
        work_s = self._work_s(step)
        if work_s is None:
            return None
        wire_s = self.wire_s(step)
        return ratio(step.rounds_s, [max(work, wire_s) for work in work_s])

    def of(self, step: Step, method: str) -> float | None:
        """Return the step over that of a method; None where that was not measured."""
        other = self.by_method.get(method)
        return None if other is None else ratio(step.rounds_s, other.rounds_s)

    def cpu_s(self, step: Step) -> float:
        """Return the processor time of all but the training thread.

        What engines that idle take in the meantime does not count: computing alone tells.
        """
        idle = self.alone.cpu.beside_main_s / self.alone.median_s
        return max(0.0, step.cpu.beside_main_s - idle * step.median_s)

    def wire_over_compute(self, step: Step) -> float:
        """Return W over F."""
        return self.wire_s(step) / self.alone.median_s

    def fastest(self, compressor: str) -> Step | None:
        """Return the step of ours with a compressor, by the hook or overlapped."""
        ours = [step for step in self.steps if step.compressor == compressor]
        return min(ours, key=lambda step: step.median_s, default=None)

    def _work_s(self, step: Step) -> list[float] | None:
        """F + K by round."""
        kernels_s = self.kernels_s(step)
        return None if kernels_s is None else [f + kernels_s for f in self.alone.rounds_s]
