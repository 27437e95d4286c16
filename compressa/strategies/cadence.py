"""Cadence: after how many steps ranks meet next.

All ranks must come to the same answer. So what an answer rests on, and may differ between ranks, is
averaged with everything else in a meeting, and all go by the mean, which has the same bits
everywhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

_HALF = 0.5
_ROUNDED = 1 + 1e-5  # what was averaged has float32's precision


@dataclass(frozen=True)
class Facts:
    """What a rank knows at a meeting.

    Attributes:
        rate: The largest learning rate now.
        first_rate: The largest when training began.
        step_s: Seconds of a step since the last meeting, without it.
        meeting_s: Seconds of the last meeting; 0 if there was none.
    """

    rate: float
    first_rate: float
    step_s: float
    meeting_s: float


class Cadence(ABC):
    """Chooses H, the number of steps to the next meeting.

    Attributes:
        told: How many numbers `tell` returns.
    """

    told: int = 0

    def tell(self, facts: Facts) -> Sequence[float]:
        """Return what the next choice rests on, and ranks may differ in."""
        del facts
        return ()

    @abstractmethod
    def choose(self, steps: int, means: Sequence[float]) -> int:
        """Return H.

        Args:
            steps: Of the optimizer since training began.
            means: Over all ranks, of what was told; none before the first meeting.
        """


@dataclass(frozen=True)
class Always(Cadence):
    """The same H throughout."""

    every: int

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """As given."""
        del steps, means
        return self.every


@dataclass(frozen=True)
class AfterSteps(Cadence):
    """1, and from a step on `every`."""

    every: int
    first: int

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the number of steps."""
        del means
        return self.every if steps >= self.first else 1


@dataclass(frozen=True)
class AfterDecay(Cadence):
    """1, and once every rank's learning rate is half of its first one, `every`."""

    every: int
    told = 1

    def tell(self, facts: Facts) -> Sequence[float]:
        """Whether it is."""
        return (float(facts.rate <= _HALF * facts.first_rate),)

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """Wait for all."""
        del steps
        return self.every if list(means) == [1.0] else 1


@dataclass(frozen=True)
class ByRate(Cadence):
    """The quadratic rule: H grows as 1 / rate^2 (Gu, Lyu, Arora, Huang and Huang, ICLR 2024)."""

    every: int
    scale: float
    longest: int
    told = 1

    def tell(self, facts: Facts) -> Sequence[float]:
        """The learning rate."""
        return (facts.rate,)

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the mean rate."""
        del steps
        if not means:
            return self.every
        wanted = math.inf if means[0] <= 0 else (self.scale / means[0]) ** 2 * _ROUNDED
        return max(self.every, int(min(wanted, self.longest)))


@dataclass(frozen=True)
class ByLink(Cadence):
    """As many steps as it takes for a meeting to last a share of them, as both were measured."""

    every: int
    share: float
    longest: int
    told = 2

    def tell(self, facts: Facts) -> Sequence[float]:
        """A step's time, and the last meeting's."""
        return facts.step_s, facts.meeting_s

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the mean times; `every` until a meeting was measured."""
        del steps
        if not means or means[1] <= 0 or means[0] <= 0:
            return self.every
        wanted = math.ceil(means[1] / (self.share * means[0]))
        return max(1, min(wanted, self.longest))
