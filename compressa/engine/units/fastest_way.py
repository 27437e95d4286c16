"""FastestWay: how steps are done, as what was measured says.

To defer updates hides exchanges behind computing, and costs the training thread Python at each
parameter. To have all gradients go together costs few messages, and leaves the wire idle until the
last of them has come. Which is more depends on the link, the cores and the model. So some steps are
done in each way, in turn, and those that follow in the one that takes least time; no bit depends on
it. The others are tried again ever more rarely. Of each way the median of several rounds counts, as
single ones differ by more than the ways do where a machine is shared. When steps have come to take
another time, as they do when the link changes, all that is forgotten, and all are tried at once.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Final

from compressa.engine.measuring.stats import WAYS, Overlap, Way

_FORM = struct.Struct(f"<B?{len(WAYS)}d")
_BETTER = 0.98  # others have to take less: what takes as long is done in the plain way
_PLAIN: Final[Way] = "at once"
_FIRST_ROUNDS = 3  # of each way, before there is a choice
_MOST_ROUNDS = 64
_PAUSE = 3.0  # so many usual steps
_KEPT = 9  # rounds of each way
_DRIFT, _SPREADS = 0.1, 4.0  # of the usual time, and of its median deviation: what is another time
_EARLY_DRIFT = 0.3  # while fewer rounds are known

CHOICE_BYTES = _FORM.size


class FastestWay:
    """Decides, on one rank for all; told each time what a step of the way in force takes.

    Args:
        ways: Several, of which one is "at once".
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self._begun = False
        self._rounds = 1  # from one trial to the next, if nothing changes
        self._left = 0
        self._off = 0  # 1 or -1 if the last round took longer or shorter than usual
        self._chosen: Way = _PLAIN
        self._seen = {way: deque[float](maxlen=_KEPT) for way in ways}
        self._tried = -1  # how many others, since there is a choice

    def next(self, now: Overlap, step_s: float) -> Overlap:
        """Return what is to be in force from now on.

        Args:
            now: What is.
            step_s: Seconds of a step, since it is.
        """
        if not self._begun:  # the first steps take their time
            self._begun = True
            return now
        if now.measuring:
            self._seen[now.way].append(step_s)
            return self._decided(self._known(now))
        self._note(now.way, step_s)
        self._left -= 1
        now = self._known(now)
        if self._left > 0:
            return now
        self._chosen = now.way
        others = [way for way in self._seen if way != now.way]
        self._tried += 1
        return replace(now, way=others[self._tried % len(others)], measuring=True)

    def _note(self, way: Way, step_s: float) -> None:
        """Learn what a round took; forget all others if it is the second that says another time."""
        before, self._off = self._off, _off(self._seen[way], step_s)
        if self._off and before != self._off:
            return
        if self._off:
            for seen in self._seen.values():
                seen.clear()
            self._off, self._left, self._rounds = 0, 0, 1
        self._seen[way].append(step_s)

    def _known(self, now: Overlap) -> Overlap:
        times = (median(self._seen[way]) if self._seen.get(way) else None for way in WAYS)
        return Overlap(now.way, now.measuring, *times)

    def _decided(self, tried: Overlap) -> Overlap:
        """Choose, if enough rounds of all ways are known; else try the next one."""
        fewest = min(self._seen, key=lambda way: len(self._seen[way]))
        if len(self._seen[fewest]) < _FIRST_ROUNDS:
            return replace(tried, way=fewest)
        step_s = {way: median(seen) for way, seen in self._seen.items()}
        step_s[_PLAIN] *= _BETTER
        way = min(step_s, key=lambda way: (step_s[way], way != _PLAIN))
        changed = way != self._chosen
        self._left = self._rounds = 1 if changed else min(2 * self._rounds, _MOST_ROUNDS)
        return replace(tried, way=way, measuring=False)


def usual_s(steps_s: Sequence[float]) -> float:
    """Return the mean of some steps' seconds, without pauses in training.

    A step that waits for longer has one after it that waits for less: their mean differs from round
    to round by less than their median.

    Example:
        >>> usual_s([1.0, 3.0, 2.0, 2.0, 60.0])
        2.0
    """
    middle_s = median(steps_s)
    return fmean(each_s for each_s in steps_s if each_s <= _PAUSE * middle_s)


def _off(seen: deque[float], step_s: float) -> int:
    """Return 1 if a step takes longer than it used to, -1 if it takes less time, else 0."""
    if not seen:
        return 0
    usual_s = median(seen)
    spread_s = _EARLY_DRIFT * usual_s
    if len(seen) == _KEPT:
        deviation_s = median(abs(each_s - usual_s) for each_s in seen)
        spread_s = max(_DRIFT * usual_s, _SPREADS * deviation_s)
    return (step_s > usual_s + spread_s) - (step_s < usual_s - spread_s)


def packed(choice: Overlap) -> bytes:
    """Return a choice as `CHOICE_BYTES` bytes, for `unpacked`."""
    times = (math.nan if s is None else s for s in choice.steps_s)
    return _FORM.pack(WAYS.index(choice.way), choice.measuring, *times)


def unpacked(data: bytes) -> Overlap:
    """Return what was `packed`.

    Args:
        data: From outside.

    Raises:
        ValueError: It is no choice.
    """
    if len(data) != CHOICE_BYTES:
        raise ValueError(f"{len(data)} bytes are no choice of {CHOICE_BYTES}")
    number, measuring, *times = _FORM.unpack(data)
    if number >= len(WAYS):
        raise ValueError(f"there is no way {number} to do steps")
    return Overlap(WAYS[number], measuring, *(None if math.isnan(s) else s for s in times))
