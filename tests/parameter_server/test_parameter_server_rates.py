"""What theorems promise workers that do not wait for each other, on a virtual clock.

Of T convex functions f_t, each met with the values that its worker has then, *regret* is the sum of
f_t(x_t) - f_t(x*). No gradient is longer than L = 1, and 1/2 |x - x*|^2 is F^2 = 1 at most.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from _server_world import ServerWorld
from _stale_runs import Run, delays
from torch.nn.functional import normalize

from compressa.parameter_server import Consistency
from compressa.parameter_server.stale_copy import StaleCopy
from compressa.transports.loopback import Loopback

DIMENSIONS = 3
Rate = Callable[[int, int], float]
"""(number of the step among those of all workers, the worker's own), from 1 on -> its rate."""


class Regret:
    """What workers regret in a schedule, where f_t(x) = |a . (x - x*)|, with an `a` of length 1.

    Attributes:
        sum: Of all steps.
        unlearned: What it would be of x = 0, with which all begin.
        missing: The most updates, made before, that the values of a step lacked.
        late: By how many steps the values of one were older than it at most.
        widest: How many steps a worker was ahead of another at most.
    """

    def __init__(
        self,
        workers: int,
        staleness: float,
        steps: int,
        rate: Rate,
        schedule: tuple[Loopback, Callable[[int], float]],
    ) -> None:
        self.sum, self.unlearned = 0.0, 0.0
        self.missing, self.late = 0, 0.0
        self._rate, self._made = rate, 0
        self._draw = torch.Generator().manual_seed(0)
        self._best = normalize(torch.randn(DIMENSIONS, generator=self._draw), dim=0)
        keys, rule = {"x": (DIMENSIONS + 1,)}, Consistency(staleness, weighting="sum")
        loopback, step_s = schedule
        world = ServerWorld(workers, keys, consistency=rule, servers=1, loopback=loopback)
        self.widest = Run(world, self._train, steps, step_s).widest

    def _train(self, worker: int, copy: StaleCopy) -> None:
        (own,) = copy.own
        x, made = own[:-1], own[-1]  # which counts the updates that are in it
        assert float((x - self._best).square().sum()) / 2 <= 1.0
        self.late = max(self.late, copy.clock - copy.front)
        self.missing = max(self.missing, self._made - int(made))
        self._made += 1
        a = normalize(torch.randn(DIMENSIONS, generator=self._draw), dim=0)
        error = float(a @ (x - self._best))
        self.sum += abs(error)
        self.unlearned += abs(float(a @ self._best))
        x -= self._rate(self._made, copy.clock + 2) * math.copysign(1.0, error) * a
        made += 1


@pytest.mark.parametrize(("workers", "s"), [(2, 1), (3, 1), (2, 4)])
def test_the_regret_of_bounded_staleness(workers: int, s: int) -> None:
    """Ho et al., NeurIPS 2013, Theorem 1: 4 F L sqrt(2 (s + 1) P T)."""

    def rate(_: int, clock: int) -> float:
        return 1.0 / math.sqrt(2 * (s + 1) * workers * workers * clock)

    steps = 800
    regret = Regret(workers, s, steps, rate, delays(0, workers))
    assert regret.late <= s
    assert regret.widest <= s + 1
    bound = 4 * math.sqrt(2 * (s + 1) * workers * workers * steps)
    assert regret.sum <= bound < regret.unlearned  # who learns nothing is found


@pytest.mark.parametrize("workers", [2, 3])
def test_the_regret_of_delays_without_a_bound(workers: int) -> None:
    """Langford, Smola and Zinkevich, "Slow learners are fast", NeurIPS 2009, Theorem 1.

    4 F L sqrt(tau T), where values lack tau of the updates made before at most, and T >= tau^2.
    """
    tau, steps, rng = 20 * (workers - 1), 1200, random.Random(0)
    loopback = Loopback(workers, delay=lambda *_: rng.expovariate(2.0))

    def rate(number: int, _: int) -> float:
        return 1.0 / math.sqrt(2 * tau * (number - tau)) if number > tau else 0.0

    schedule = loopback, lambda worker: rng.expovariate(1.0)
    regret = Regret(workers, math.inf, steps, rate, schedule)
    total = workers * steps
    bound = 4 * math.sqrt(tau * total)
    assert regret.missing <= tau <= math.sqrt(total), "the schedule is not that of the bound"
    assert regret.sum <= bound < regret.unlearned
