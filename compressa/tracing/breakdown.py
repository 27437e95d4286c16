"""Breakdown: what each moment of a step was spent on; every moment counts once.

While the training thread does not wait, its time is its own: on a core (for training, or within
calls of this package), ready to run without a core, or blocked; blocked by the lock, for as long as
others are known to have had it, and by something else of its own for the rest.

While it waits, the first of these that holds at a moment is the cause:

1. *codec*: a unit is encoded or decoded; but for the fraction of that in which the thread at it
   had no core it is *core*, and for that in which it was blocked, while the lock was taken, *lock*;
2. *core*: a thread of the engine, or the training thread that has been called, has no core;
3. *wire*: bytes of ours leave, or a message that has begun to arrive is not complete;
4. *peers*: ours has left, and of theirs nothing is here yet;
5. *carried*: an exchange is under way whose transport does not tell when messages arrive: the wire,
   or peers;
6. something is ready, and no thread does it: *lock* while the lock is taken, else *queued*.

What remains of the step is not accounted for, and is told as such.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import chain, pairwise
from typing import NamedTuple

from compressa.tracing.events import NO_UNIT, Span
from compressa.tracing.intervals import Interval, Intervals

_Fractions = tuple[float, ...]
_TRAINING = ("compute", "calls", "core", "lock", "elsewhere")
_CAUSES = (*_TRAINING, "codec", "wire", "peers", "carried", "queued")


@dataclass(frozen=True)
class Breakdown:
    """Seconds of the training thread, by what they were spent on; they add up to the step.

    Attributes:
        compute_s: It was on a core, for training.
        calls_s: It was on a core, within calls of this package.
        core_s: It, or what it waited for, was ready to run and had no core.
        lock_s: It, or what it waited for, waited for the interpreter's lock.
        codec_s: It waited for units to be encoded or decoded.
        wire_s: It waited for bytes to leave or to arrive.
        peers_s: It waited for peers, and for the network's delay.
        carried_s: It waited for the wire or for peers, and nobody tells for which.
        queued_s: It waited for work to be taken up: hand-overs between threads, a turn, pace.
        elsewhere_s: It was blocked by something of its own: input, a sleep, threads of others.
        unknown_s: Nothing of that is known.
    """

    compute_s: float = 0.0
    calls_s: float = 0.0
    core_s: float = 0.0
    lock_s: float = 0.0
    codec_s: float = 0.0
    wire_s: float = 0.0
    peers_s: float = 0.0
    carried_s: float = 0.0
    queued_s: float = 0.0
    elsewhere_s: float = 0.0
    unknown_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it: the step."""
        return math.fsum(astuple(self))


def total(parts: Sequence[Breakdown]) -> Breakdown:
    """Return the sums of several steps."""
    names = [field.name for field in fields(Breakdown)]
    return Breakdown(**{name: math.fsum(getattr(part, name) for part in parts) for name in names})


def breakdowns(spans: Sequence[Span], windows: Sequence[Interval]) -> list[Breakdown]:
    """Work out what the time of steps was spent on.

    Args:
        spans: Of one rank. If none is of stage "train", all outside of waits is computing.
        windows: Begin and end of each step, in order; no two overlap.

    Returns:
        One for each window; they add up to its length.
    """
    found = [dict.fromkeys(_CAUSES, 0.0) for _ in windows]
    moment = _Moment(any(span.stage == "train" for span in spans))
    bounds = [_Change(time_s) for window in windows for time_s in window]
    changes = sorted(chain(bounds, _changes(spans)), key=lambda change: change.time_s)
    begins = [begin_s for begin_s, _ in windows]
    for change, after in pairwise(changes):
        moment.apply(change)
        seconds = after.time_s - change.time_s
        index = bisect_right(begins, change.time_s) - 1
        if seconds > 0 and index >= 0 and change.time_s < windows[index][1]:
            for cause, fraction in moment.causes():
                found[index][cause] += fraction * seconds
    return [
        Breakdown(**{f"{cause}_s": seconds for cause, seconds in sums.items()}, unknown_s=rest_s)
        for sums, (begin_s, end_s) in zip(found, windows, strict=True)
        for rest_s in [max(end_s - begin_s - math.fsum(sums.values()), 0.0)]
    ]


class _Change(NamedTuple):
    time_s: float
    kind: str = ""
    sign: int = 0  # 1 where something begins, -1 where it ends
    fractions: _Fractions = ()


class _UnderWay:
    """How much of a kind is under way, and the mean of its fractions."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[float] = []

    def apply(self, change: _Change) -> None:
        self.count += change.sign
        if not (self._sums and self.count):  # what was rounded off is forgotten
            self._sums = [0.0] * len(change.fractions)
        if self.count:
            for index, fraction in enumerate(change.fractions):
                self._sums[index] += change.sign * fraction

    @property
    def fractions(self) -> list[float]:
        return [min(max(each / self.count, 0.0), 1.0) for each in self._sums]


class _Moment:
    """What is under way, and what the training thread's time is put down to meanwhile.

    Args:
        known: Whether it is known what that thread does outside of waits.
    """

    def __init__(self, known: bool) -> None:
        self._known = known
        self._of: defaultdict[str, _UnderWay] = defaultdict(_UnderWay)

    def apply(self, change: _Change) -> None:
        if change.sign:
            self._of[change.kind].apply(change)

    def causes(self) -> Iterable[tuple[str, float]]:
        """Causes, with the fraction of each; together at most 1."""
        under_way = self._of
        if under_way["train"].count:
            return zip(_TRAINING, under_way["train"].fractions, strict=True)
        if not under_way["wait"].count:
            return () if self._known else (("compute", 1.0),)
        if under_way["codec"].count:
            core, blocked = under_way["codec"].fractions
            lock = blocked if under_way["lock"].count else 0.0
            return ("core", core), ("lock", lock), ("codec", 1.0 - core - lock)
        for cause in ("core", "wire", "peers", "carried"):
            if under_way[cause].count:
                return ((cause, 1.0),)
        if under_way["queued"].count:
            return (("lock" if under_way["lock"].count else "queued", 1.0),)
        return ()


def _changes(spans: Sequence[Span]) -> Iterator[_Change]:
    taken = Intervals((s.started_s, s.ended_s) for s in spans if s.stage == "lock")
    for kind, begin_s, end_s, fractions in chain(_pieces(spans, taken), _called(spans)):
        if end_s > begin_s:
            yield _Change(begin_s, kind, 1, fractions)
            yield _Change(end_s, kind, -1, fractions)


class _Piece(NamedTuple):
    kind: str
    begin_s: float
    end_s: float
    fractions: _Fractions = ()


def _pieces(spans: Sequence[Span], taken: Intervals) -> Iterator[_Piece]:
    came_s: dict[tuple[int, int, int], float] = {}
    for span in spans:
        if span.stage == "arrive":
            key = span.step, span.unit, span.number
            came_s[key] = max(came_s.get(key, span.ended_s), span.ended_s)
    for span in spans:
        whole = _Piece(span.stage, span.started_s, span.ended_s)
        if span.stage == "wire":
            yield from _carried(whole, span, came_s.get((span.step, span.unit, span.number)))
        elif span.stage == "arrive":
            yield whole._replace(kind="wire")
        elif span.stage in ("compress", "decompress"):
            yield whole._replace(kind="codec", fractions=_codec_fractions(span))
        elif span.stage == "train":
            yield whole._replace(fractions=_training_fractions(span, taken))
        elif span.stage in ("wait", "queued", "core", "lock"):
            yield whole


def _carried(whole: _Piece, span: Span, came_s: float | None) -> Iterator[_Piece]:
    """Of an exchange: ours leaves, then peers are waited for, then it waits for its thread."""
    if span.sent_s is not None:
        yield whole._replace(end_s=span.sent_s)
    if span.sent_s is None or came_s is None:
        yield whole._replace(kind="carried")
        return
    yield whole._replace(kind="peers", end_s=min(came_s, span.ended_s))
    yield whole._replace(kind="queued")


def _called(spans: Sequence[Span]) -> Iterator[_Piece]:
    """What a wait was for is there; the training thread must still be called."""
    ends = sorted(span.ended_s for span in spans if span.unit != NO_UNIT)
    for wait in spans:
        if wait.stage == "wait":
            index = bisect_right(ends, wait.ended_s)
            if index and ends[index - 1] >= wait.started_s:
                yield _Piece("queued", ends[index - 1], wait.ended_s)
            if wait.core_s is not None:
                core_s = min(wait.core_s, wait.seconds)
                yield _Piece("core", wait.ended_s - core_s, wait.ended_s)


def _codec_fractions(span: Span) -> _Fractions:
    """Without a core, and blocked."""
    if span.cpu_s is None or span.seconds <= 0:
        return 0.0, 0.0
    cpu_s = min(span.cpu_s, span.seconds)
    core_s = min(span.core_s or 0.0, span.seconds - cpu_s)
    return core_s / span.seconds, (span.seconds - cpu_s - core_s) / span.seconds


def _training_fractions(span: Span, taken: Intervals) -> _Fractions:
    """On a core, for itself and for us; without a core; blocked, by the lock and otherwise.

    Of the time in which the lock was taken, the thread itself had it for at most as long as it was
    on a core.
    """
    if span.cpu_s is None or span.seconds <= 0:
        return 1.0, 0.0, 0.0, 0.0, 0.0
    cpu_s = min(span.cpu_s, span.seconds)
    calls_s = min(span.calls_s, cpu_s)
    core_s = min(span.core_s or 0.0, span.seconds - cpu_s)
    blocked_s = span.seconds - cpu_s - core_s
    others_s = taken.within(span.started_s, span.ended_s) - cpu_s
    lock_s = min(max(others_s, 0.0), blocked_s)
    parts = (cpu_s - calls_s, calls_s, core_s, lock_s, blocked_s - lock_s)
    return tuple(part / span.seconds for part in parts)
