"""Consistency: how far workers that update values may be apart; Clocks: who may go on.

A worker's *clock* is the step of the last update of its that was taken. Its answer to step t is
given when all clocks are at t - s at least (stale synchronous parallel: Ho et al., "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013). So what it goes on
with has every update of steps up to t - s. With s = 0 all workers take each step together; without
a bound nobody waits (Recht et al., 2011). With b backup workers the slowest b hold nobody up (Chen
et al., "Revisiting Distributed Synchronous SGD", 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compressa.config.strategy_sections import Weighting
from compressa.errors import ConfigError


@dataclass(frozen=True)
class Consistency:
    """What workers that update values may rely on.

    Attributes:
        staleness: s, in steps; `math.inf` for no bound.
        backup_workers: b, how many are not waited for; only where s = 0.
        weighting: What an update is multiplied by. mean: 1 / P; sum: 1; staleness: 1 / (1 + how
            many updates of others came since its worker was answered; Zhang et al., 2016).
        delay_compensation: lambda of DC-ASGD (Zheng et al., 2017); 0 without it.

    Raises:
        ConfigError: A number is out of its range, or two do not go together.
    """

    staleness: float
    backup_workers: int = 0
    weighting: Weighting = "mean"
    delay_compensation: float = 0.0

    def __post_init__(self) -> None:
        if not (self.staleness >= 0 and (self.staleness == math.inf or self.staleness % 1 == 0)):
            raise ConfigError(
                f"staleness = {self.staleness} is no number of steps; give 0, 1, ... or math.inf"
            )
        if self.backup_workers < 0 or (self.backup_workers and self.staleness):
            raise ConfigError(
                f"backup_workers = {self.backup_workers} with staleness = {self.staleness:g}: "
                "whoever is not waited for is known only in synchronous steps; set staleness = 0, "
                "or leave backup_workers out"
            )
        if self.staleness == 0 and (self.weighting != "mean" or self.delay_compensation):
            raise ConfigError(
                "staleness = 0 takes the mean of updates that all began from the same values; "
                'leave weighting = "mean" and delay_compensation = 0'
            )
        if not 0 <= self.delay_compensation < math.inf:
            raise ConfigError(f"delay_compensation = {self.delay_compensation} is below 0")


class Clocks:
    """The clocks of all workers, and who waits for them.

    Args:
        workers: How many there are.
        consistency: How far they may be apart.
        first_step: The first step.
    """

    def __init__(self, workers: int, consistency: Consistency, first_step: int) -> None:
        self._bound = consistency.staleness
        self._backup = consistency.backup_workers
        self._at = dict.fromkeys(range(workers), first_step - 1)
        self._waiting: dict[int, int] = {}
        self._met: set[int] = set()

    @property
    def front(self) -> int:
        """The step that everybody who counts has done."""
        at = sorted(at for worker, at in self._at.items() if worker not in self._met)
        return at[min(self._backup, len(at) - 1)] if at else self.last

    @property
    def counted(self) -> int:
        """How many updates of a step it takes for it to be done."""
        return max(1, len(self._at.keys() - self._met) - self._backup)

    @property
    def last(self) -> int:
        """The last step that anybody has done."""
        return max(self._at.values())

    @property
    def workers(self) -> list[int]:
        """Who has not left."""
        return list(self._at)

    @property
    def waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting or self._met)

    def advance(self, worker: int, step: int) -> None:
        """Note that the update of a step was taken, or dropped as too late.

        Args:
            worker: Whose; one that has left is passed over.
            step: Which, its last from now on.
        """
        if worker in self._at:  # what it sent before it left may come later
            self._at[worker] = step

    def wait(self, worker: int, step: int) -> None:
        """Note that a worker waits for the answer to a step, until `released` says so.

        Args:
            worker: Its number; one answer at a time.
            step: The step.
        """
        self._waiting[worker] = step

    def meet(self, worker: int) -> None:
        """Note that a worker goes no further until all have come; it holds nobody up."""
        self._met.add(worker)

    def leave(self, worker: int) -> None:
        """Forget a worker, which will do no more steps."""
        self._at.pop(worker, None)
        self._waiting.pop(worker, None)
        self._met.discard(worker)

    def released(self) -> list[tuple[int, int]]:
        """Take those out who wait no longer: their own update was taken, and others are so far.

        Returns:
            For each, the number of the worker and the step that it is answered, in the order of
            `wait`; once for each call of that.
        """
        ready = [(w, step) for w, step in self._waiting.items() if self._may(w, step)]
        for worker, _ in ready:
            del self._waiting[worker]
        return ready

    def united(self) -> bool:
        """Whether all have come to meet; then all clocks are set to one step after the last."""
        if not self._at or self._met < self._at.keys():
            return False
        self._at = dict.fromkeys(self._at, self.last + 1)
        self._met.clear()
        return True

    def late(self) -> list[int]:
        """Return whom others wait for."""
        due = max(self._waiting.values(), default=-math.inf) - self._bound
        away = [worker for worker in self._at if worker not in self._met]
        if self._met:
            return away
        return [worker for worker in away if self._at[worker] < due]

    def _may(self, worker: int, step: int) -> bool:
        """Whether a worker's own update was taken, and the others are so far."""
        return self._at[worker] >= step and self.front >= step - self._bound
