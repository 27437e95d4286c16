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
        step_s: Seconds of a step since the last meeting, without it.
        meeting_s: Seconds of the last meeting; 0 if there was none.
    """

    rate: float
    step_s: float
    meeting_s: float


class Cadence(ABC):
    """Chooses H, the number of steps to the next meeting.

    Attributes:
        told: How many numbers `tell` returns.
        timed: Whether it goes by times.
        memory: A float32 number that it keeps from meeting to meeting; saved with the anchors.
    """

    told: int = 0
    timed: bool = False

    def __init__(self) -> None:
        self.memory = 0.0

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


class Always(Cadence):
    """The same H throughout."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """As given."""
        del steps, means
        return self._every


class AfterSteps(Cadence):
    """1, and from a step on `every`."""

    def __init__(self, every: int, first: int) -> None:
        super().__init__()
        self._every, self._first = every, first

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the number of steps."""
        del means
        return self._every if steps >= self._first else 1


class AfterDecay(Cadence):
    """1, and once the learning rate is half of the largest there was, `every` for good."""

    told = 1

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every

    def tell(self, facts: Facts) -> Sequence[float]:
        """The learning rate."""
        return (facts.rate,)

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the mean rate; the memory is the largest one, or infinite after the switch."""
        del steps
        if means:
            (rate,) = means
            fallen = 0 < rate <= _HALF * self.memory * _ROUNDED
            self.memory = math.inf if fallen else max(self.memory, rate)
        return self._every if math.isinf(self.memory) else 1


class ByRate(Cadence):
    """The quadratic rule: H grows as 1 / rate^2 (Gu, Lyu, Arora, Huang and Huang, ICLR 2024).

    While the rate rises, as in a warm-up, and after the first meeting, H is `every`.
    """

    told = 1

    def __init__(self, every: int, scale: float, longest: int) -> None:
        super().__init__()
        self._every, self._scale, self._longest = every, scale, longest

    def tell(self, facts: Facts) -> Sequence[float]:
        """The learning rate."""
        return (facts.rate,)

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the mean rate; the memory is that of the last meeting."""
        del steps
        if not means:
            return self._every
        (rate,), before = means, self.memory
        self.memory = rate
        if rate > before * _ROUNDED:
            return self._every
        wanted = math.inf if rate <= 0 else (self._scale / rate) ** 2 * _ROUNDED
        return max(self._every, int(min(wanted, self._longest)))


class ByLink(Cadence):
    """As many steps as it takes for a meeting to last a share of them, as both were measured."""

    told = 2
    timed = True

    def __init__(self, every: int, share: float, longest: int) -> None:
        super().__init__()
        self._every, self._share, self._longest = every, share, longest

    def tell(self, facts: Facts) -> Sequence[float]:
        """A step's time, and the last meeting's."""
        return facts.step_s, facts.meeting_s

    def choose(self, steps: int, means: Sequence[float]) -> int:
        """By the mean times; `every` until a meeting was measured."""
        del steps
        if not means or min(means) <= 0:
            return self._every
        step_s, meeting_s = means
        return max(1, min(math.ceil(meeting_s / (self._share * step_s)), self._longest))
