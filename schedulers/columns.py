"""Transfers as arrays, and what follows from them whatever the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from compressa.schedulers.link import Link
from compressa.schedulers.plan import Name, Transfer

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.int64, np.float64)
_LAG_UNITS = 2


@dataclass(frozen=True, eq=False)
class Columns:
    """The transfers of a step, a row each, by unit and stage.

    Attributes:
        unit, stage, wire_bytes: As of `Transfer`.
        ready_s, need_s: Of the row's unit, as its first stage has them.
        encode_s, decode_s: As of `Transfer`.
        before: Row that it waits for; -1 if none.
        first: Row of the unit's first stage.
    """

    unit: Integers
    stage: Integers
    wire_bytes: Integers
    ready_s: Floats
    need_s: Floats
    encode_s: Floats
    decode_s: Floats
    before: Integers
    first: Integers

    @classmethod
    def of(cls, transfers: Sequence[Transfer]) -> Columns:
        """Sort and check transfers.

        Raises:
            ValueError: One is there twice, or waits for one that is not there or not earlier, or a
                number is negative or not finite.
        """
        unit = np.array([t.unit for t in transfers], dtype=np.int64)
        stage = np.array([t.stage for t in transfers], dtype=np.int64)
        rows = np.lexsort((stage, unit))
        unit, stage = unit[rows], stage[rows]
        if ((np.diff(unit) == 0) & (np.diff(stage) == 0)).any():
            raise ValueError("the same (unit, stage) is planned twice")
        first = np.searchsorted(unit, unit)
        after = np.array([t.waits_for for t in transfers], dtype=np.int64)[rows]
        wire_bytes = np.array([t.wire_bytes for t in transfers], dtype=np.int64)[rows]
        return cls(
            unit,
            stage,
            _checked(wire_bytes),
            _checked(np.array([t.ready_s for t in transfers], dtype=np.float64)[rows])[first],
            _checked(np.array([t.need_s for t in transfers], dtype=np.float64)[rows])[first],
            _checked(np.array([t.encode_s for t in transfers], dtype=np.float64)[rows]),
            _checked(np.array([t.decode_s for t in transfers], dtype=np.float64)[rows]),
            _rows_before(unit, stage, after),
            first,
        )

    def __len__(self) -> int:
        return len(self.unit)

    @cached_property
    def names(self) -> list[Name]:
        """(unit, stage) by row."""
        return list(zip(self.unit.tolist(), self.stage.tolist(), strict=True))

    @cached_property
    def generations(self) -> list[Integers]:
        """Rows, in int64, that wait for none, then those that wait for one of these, and so on."""
        found = [np.flatnonzero(self.before < 0)]
        waiting = np.flatnonzero(self.before >= 0)
        while len(waiting):
            now = np.isin(self.before[waiting], found[-1])
            found.append(waiting[now])
            waiting = waiting[~now]
        return found

    @cached_property
    def depth(self) -> Integers:
        """int64[rows]: how many come before it, one after the other."""
        depth = np.zeros(len(self), dtype=np.int64)
        for generation, rows in enumerate(self.generations):
            depth[rows] = generation
        return depth

    @cached_property
    def is_last(self) -> npt.NDArray[np.bool_]:
        """bool[rows]: whether none waits for it."""
        last = np.ones(len(self), dtype=np.bool_)
        last[self.before[self.before >= 0]] = False
        return last

    @cached_property
    def shapes(self) -> Integers:
        """int64[rows]: equal for units whose stages have the same numbers and wait alike."""
        begins = np.unique(self.first)
        if len(begins) == len(self):
            return self.stage
        back = np.where(self.before < 0, 0, np.arange(len(self)) - self.before)
        rows = np.stack((self.stage, back), axis=1)
        ends = np.append(begins, len(self))
        numbers, known = rows.tobytes(), dict[bytes, int]()
        units = [numbers[i:j] for i, j in pairwise((rows.itemsize * 2 * ends).tolist())]
        shapes = [known.setdefault(unit, len(known)) for unit in units]
        return np.repeat(np.array(shapes, dtype=np.int64), np.diff(ends))

    def tails_s(self, link: Link | None) -> Floats:
        """Return float64[rows]: seconds from a row's last byte's leaving to the unit's result.

        Args:
            link: What carries all that comes after it, on an idle wire; None: in no time.
        """
        wire_s = self.wire_bytes / link.bytes_per_s + link.overhead_s if link else 0.0
        here_s = self.decode_s + (link.latency_s if link else 0.0)
        tails_s = here_s.copy()
        steps_s = self.encode_s + wire_s
        for rows in reversed(self.generations[1:]):
            before = self.before[rows]
            behind_s = here_s[before] + steps_s[rows] + tails_s[rows]
            np.maximum.at(tails_s, before, behind_s)
        return tails_s

    def in_stages(self, key: Sequence[npt.NDArray[np.generic]]) -> Integers:
        """Order rows by their unit's priority, later stages a few units later.

        A stage cannot start before the answer to the one that it waits for is back. Placing it
        a few units later for each that it waits for fills the wire with other units meanwhile;
        the segments of a sum wait for none of each other, and stay together.

        Args:
            key: Arrays by row, the same for all of a unit; the first counts most, and of equals the
                unit with the smaller number comes first.

        Returns:
            int64[rows]: all rows, the first first.
        """
        units = np.unique(self.first)
        priority = np.empty(len(self), dtype=np.int64)
        priority[units[np.lexsort([column[units] for column in (self.unit, *reversed(key))])]] = (
            np.arange(len(units))
        )
        priority = priority[self.first]
        return np.lexsort((self.stage, -self.depth, priority + _LAG_UNITS * self.depth))


def _checked(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError("bytes and seconds of a transfer must be finite and at least 0")
    return values


def _rows_before(unit: Integers, stage: Integers, after: Integers) -> Integers:
    """Find the rows that rows wait for."""
    before = np.full(len(unit), -1, dtype=np.int64)
    waiting = np.flatnonzero(after >= 0)
    if len(waiting):
        most = int(max(stage.max(), after.max())) + 1
        names = unit * most + stage
        found = np.searchsorted(names, unit[waiting] * most + after[waiting])
        if (found >= waiting).any() or (names[found] != (unit * most + after)[waiting]).any():
            raise ValueError("a stage waits for one that is not there, or for no earlier one")
        before[waiting] = found
    return before
