"""FastestWay: how steps are done, as what was measured says.

To defer updates hides exchanges behind computing, and costs the training thread Python at each
parameter. To have all gradients go together costs few messages, and leaves the wire idle until the
last of them has come. Which is more depends on the link, the cores and the model. So some steps are
done in each way, in turn, and those that follow in the one that takes least time; no bit depends on
it. The others are tried again ever more rarely.

A shared machine's own speed drifts by more than the ways differ. So rounds are compared only with
those beside them: in a cycle, which has one round of each way, a way takes a share of the cycle's
mean, and of the shares of several cycles the median counts. There are as many cycles as it takes
until the fastest way's lead is more than the error of what was measured. When steps have come to
take another time, as they do when the link changes, a cycle is done at once; if another way is the
fastest in it, another cycle; and if one is in that, too, what was known before both is forgotten.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Final

from compressa.engine.measuring.stats import WAYS, Overlap, Way

_FORM = struct.Struct(f"<B?{len(WAYS)}d")
_BETTER = 0.98  # others have to take less: what takes as long is done in the plain way
_PLAIN: Final[Way] = "at once"
_FIRST_ROUNDS = 3  # of each way, at least, before there is a choice
_MOST_ROUNDS = 64
_AGAINST = 2  # cycles in turn without the chosen way as the fastest: what was known is no longer so
_PAUSE = 3.0  # so many usual steps
_KEPT = 9  # rounds of each way; after as many there is a choice in any case
_ERROR = 1.25  # of a median: so many mean deviations over the root of their number
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
        self._rounds = 0  # from one cycle to the next; each that changes nothing doubles them
        self._left = 0
        self._off = 0  # 1 or -1 if the last round took longer or shorter than usual
        self._doubted = False  # steps take another time, so the fastest way may be another, too
        self._against = 0  # cycles since then in which it was another
        self._chosen: Way = _PLAIN
        self._seen = {way: deque[float](maxlen=_KEPT) for way in ways}
        self._cycle: dict[Way, float] = {}  # the last round of each way that had one in it
        self._shares = {way: deque[float](maxlen=_KEPT) for way in ways}

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
        else:
            self._note(now.way, step_s)
            self._left -= 1
        self._cycle[now.way] = step_s
        return self._known(self._following(now))

    def _following(self, now: Overlap) -> Overlap:
        if not now.measuring and self._left > 0:
            return now
        if len(self._cycle) == len(self._seen):
            self._compare()
            if not self._doubted and self._is_clear():
                return self._decided(now)
        way = next(way for way in self._seen if way not in self._cycle)
        return replace(now, way=way, measuring=True)

    def _note(self, way: Way, step_s: float) -> None:
        """Learn what a round took; begin a cycle if it is the second that says another time."""
        before, self._off = self._off, _off(self._seen[way], step_s)
        if self._off and before != self._off:
            return
        if self._off:
            for seen in self._seen.values():
                seen.clear()
            self._off, self._left, self._doubted = 0, 0, True
        self._seen[way].append(step_s)

    def _known(self, now: Overlap) -> Overlap:
        """Tell what steps take: in the chosen way as was seen, in others as their shares say."""
        times = {way: median(seen) for way, seen in self._seen.items() if seen}
        if all(self._shares.values()) and self._chosen in times:
            shares = {way: median(each) for way, each in self._shares.items()}
            own_s, own = times[self._chosen], shares.pop(self._chosen)
            times |= {way: own_s * share / own for way, share in shares.items()}
        return Overlap(now.way, now.measuring, *map(times.get, WAYS))

    def _compare(self) -> None:
        """Learn what share of a cycle's mean each way took; forget older ones that have changed."""
        if self._doubted:
            self._against = 0 if _fastest(self._cycle) == self._chosen else self._against + 1
            self._doubted = 0 < self._against < _AGAINST
            if self._against == _AGAINST:
                self._against = 0
                for way, shares in self._shares.items():
                    self._shares[way] = deque([*shares][1 - _AGAINST :], _KEPT)
        mean_s = fmean(self._cycle.values())
        for way, step_s in self._cycle.items():
            self._shares[way].append(step_s / mean_s)
        self._cycle.clear()

    def _is_clear(self) -> bool:
        """Whether the fastest way leads each other by no less than the error of that."""
        count = len(self._shares[_PLAIN])
        if not _FIRST_ROUNDS <= count < _KEPT:
            return count == _KEPT
        due = {way: [_due(way, share) for share in each] for way, each in self._shares.items()}
        best = due.pop(self._best())
        for shares in due.values():
            leads = [other - own for other, own in zip(shares, best, strict=True)]
            lead = median(leads)
            deviation = fmean(abs(each - lead) for each in leads)
            if lead < _ERROR * deviation / math.sqrt(count):
                return False
        return True

    def _decided(self, tried: Overlap) -> Overlap:
        way = self._best()
        more = 0 if way != self._chosen else 2 * self._rounds
        self._left = self._rounds = min(max(more, 1), _MOST_ROUNDS)
        self._chosen = way
        return replace(tried, way=way, measuring=False)

    def _best(self) -> Way:
        return _fastest({way: median(shares) for way, shares in self._shares.items()})


def _fastest(times: Mapping[Way, float]) -> Way:
    due = {way: _due(way, time) for way, time in times.items()}
    return min(due, key=lambda way: (due[way], way != _PLAIN))


def _due(way: Way, time: float) -> float:
    return _BETTER * time if way == _PLAIN else time


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
