"""What a step was measured to be like: when units are ready and needed, and their codecs' times.

Profiles of ranks are merged by the maximum: a collective waits for the last of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class UnitTimes:
    """One unit's times in a step, in seconds.

    Attributes:
        ready_s: From the start of backward until all of its gradients are there.
        need_s: Of computing, from the start of the next forward until its parameters are used; 0
            where forward does not begin before all are there.
        encode_s: Computing before its first exchange.
        decode_s: Computing between and after its exchanges.
    """

    ready_s: float = 0.0
    need_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0


_PER_UNIT = len(fields(UnitTimes))
_OF_STEP = 2


@dataclass(frozen=True)
class Profile:
    """The times of a step.

    Attributes:
        units: By the units' numbers.
        forward_s: Computing of the forward; 0 if unknown.
        backward_s: From the start of backward until the last gradient is there.
    """

    units: tuple[UnitTimes, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0

    @classmethod
    def merged(cls, profiles: Sequence[Profile]) -> Self:
        """Return the slowest of all ranks, number by number.

        Raises:
            ValueError: They are not of the same units.
        """
        rows = [profile.numbers() for profile in profiles]
        return cls.of([max(column) for column in zip(*rows, strict=True)])

    def numbers(self) -> list[float]:
        """Return all times in a row, from which `of` makes the same profile."""
        row = [self.forward_s, self.backward_s]
        for unit in self.units:
            row += (unit.ready_s, unit.need_s, unit.encode_s, unit.decode_s)
        return row

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Self:
        """Make a profile of what its `numbers` returned.

        Args:
            numbers: Seconds: forward, backward, and four of each unit.

        Raises:
            ValueError: They are not as many, or not finite, or negative.
        """
        units, rest = divmod(len(numbers) - _OF_STEP, _PER_UNIT)
        if units < 0 or rest or not all(math.isfinite(x) and x >= 0 for x in numbers):
            raise ValueError("a profile has four times for each unit and two more, from 0 on")
        times = [numbers[_OF_STEP + i * _PER_UNIT :][:_PER_UNIT] for i in range(units)]
        return cls(tuple(UnitTimes(*row) for row in times), *numbers[:_OF_STEP])

    def drift(self, later: Profile) -> float:
        """Return by how much the times of a later profile differ, as a part of the step.

        It is the largest difference of any time of a unit, over the longer of the two steps: what
        a plan was made for has changed if it is not small.

        Raises:
            ValueError: They are not of the same units.
        """
        pairs = list(zip(self.numbers(), later.numbers(), strict=True))
        step_s = max(self.step_s, later.step_s)
        return max(abs(a - b) for a, b in pairs) / step_s if step_s else 0.0

    @property
    def step_s(self) -> float:
        """Computing of a step, as far as it is known."""
        return self.forward_s + self.backward_s
