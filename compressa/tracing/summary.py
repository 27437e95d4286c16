"""Summary: what a trace amounts to, step by step and in all.

What happens between the beginnings of two steps counts to the first of them, whichever step it
serves; the last step ends with the trace.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from compressa.tracing.breakdown import Breakdown, breakdowns, total
from compressa.tracing.events import WAITS, Span, Trace
from compressa.tracing.exposure import exposure
from compressa.tracing.intervals import Intervals
from compressa.tracing.inversions import inversions

_TOP = 10
_PERCENTILE = 0.95


@dataclass(frozen=True)
class Queueing:
    """How long units waited for one thing.

    Attributes:
        waits: How often.
        total_s: The sum.
        p95_s: Of all waits, 95 % were no longer.
    """

    waits: int = 0
    total_s: float = 0.0
    p95_s: float = 0.0


@dataclass(frozen=True)
class Figures:
    """What a step, or several, amount to.

    Attributes:
        seconds: From its beginning to that of the next.
        exposed_s: For how long the training thread waited.
        idle_s: For how long nothing was on the wire.
        idle_ready_s: For how long of that some unit was ready, and had something unsent.
        inversions: How often an exchange waited to leave while one that is needed later was sent.
        inverted_s: For how long; those that wait at the same time count each.
        queueing: By what is waited for; see `compressa.tracing.WAITS`.
        breakdown: What the training thread's time was spent on; it adds up to `seconds`.
    """

    seconds: float
    exposed_s: float
    idle_s: float
    idle_ready_s: float
    inversions: int
    inverted_s: float
    queueing: dict[str, Queueing]
    breakdown: Breakdown

    @property
    def compute_s(self) -> float:
        """For how long the training thread did not wait."""
        return self.seconds - self.exposed_s


@dataclass(frozen=True)
class Summary:
    """What one rank's trace amounts to.

    Attributes:
        rank: The rank.
        size: Of how many ranks.
        steps: Number and figures of each.
        total: All of them.
        exposed: What was waited for longest, by the names of parameters, and for how long in all.
        dropped_steps: As in `compressa.tracing.Trace`.
        dropped_spans: As there.
        training_known: Whether it is known what the training thread did outside of waits; else all
            of that is taken for computing.
        cores_known: Whether waits for a core are known; else they are among those for the lock.
    """

    rank: int
    size: int
    steps: tuple[tuple[int, Figures], ...]
    total: Figures
    exposed: tuple[tuple[str, float], ...]
    dropped_steps: int
    dropped_spans: int
    training_known: bool
    cores_known: bool


def summarise(trace: Trace) -> Summary:
    """Work out what a trace amounts to."""
    windows = _windows(trace)
    reckoned = _Reckoned(trace, windows)
    exposed = sorted(exposure(trace.spans).items(), key=lambda pair: (-pair[1], pair[0]))
    return Summary(
        trace.rank,
        trace.size,
        tuple((window.step, reckoned.figures([window])) for window in windows),
        reckoned.figures(windows),
        tuple(exposed[:_TOP]),
        trace.dropped_steps,
        trace.dropped_spans,
        any(span.stage == "train" and span.cpu_s is not None for span in trace.spans),
        any(span.core_s is not None for span in trace.spans),
    )


class _Window(NamedTuple):
    begin_s: float
    end_s: float
    step: int


def _windows(trace: Trace) -> list[_Window]:
    """When each step was under way; a last mark that nothing belongs to ends the step before."""
    marks = [*trace.steps, (-1, trace.ended_s)]
    windows = [_Window(begin, end, step) for (step, begin), (_, end) in itertools.pairwise(marks)]
    if windows and all(span.step != windows[-1].step for span in trace.spans):
        windows.pop()
    return windows


class _Reckoned:
    """A trace, laid out so that the figures of a window are looked up."""

    def __init__(self, trace: Trace, windows: Sequence[_Window]) -> None:
        by_stage: defaultdict[str, list[Span]] = defaultdict(list)
        for span in trace.spans:
            by_stage[span.stage].append(span)
        self._exposed = _union(by_stage["wait"])
        self._busy = _union(by_stage["wire"])
        self._starved = Intervals(_unsent(by_stage["ready"], by_stage["wire"])) - self._busy
        self._queued = _by_window(windows, by_stage["queued"])
        self._inversions = _by_window(windows, inversions(trace.spans))
        bounds = [(begin_s, end_s) for begin_s, end_s, _ in windows]
        self._breakdowns = dict(zip(windows, breakdowns(trace.spans, bounds), strict=True))

    def figures(self, windows: Sequence[_Window]) -> Figures:
        seconds = math.fsum(end_s - begin_s for begin_s, end_s, _ in windows)
        late = [inversion for window in windows for inversion in self._inversions[window]]
        return Figures(
            seconds=seconds,
            exposed_s=_inside(self._exposed, windows),
            idle_s=seconds - _inside(self._busy, windows),
            idle_ready_s=_inside(self._starved, windows),
            inversions=len(late),
            inverted_s=math.fsum(inversion.seconds for inversion in late),
            queueing=_queueing([span for window in windows for span in self._queued[window]]),
            breakdown=total([self._breakdowns[window] for window in windows]),
        )


def _union(spans: Iterable[Span]) -> Intervals:
    return Intervals((span.started_s, span.ended_s) for span in spans)


def _inside(intervals: Intervals, windows: Iterable[_Window]) -> float:
    return math.fsum(intervals.within(begin_s, end_s) for begin_s, end_s, _ in windows)


def _unsent(ready: Iterable[Span], wires: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """From when a unit was ready until its last exchange began."""
    last_s: dict[tuple[int, int], float] = {}
    for wire in wires:
        key = wire.step, wire.unit
        last_s[key] = max(last_s.get(key, wire.started_s), wire.started_s)
    for span in ready:
        if (span.step, span.unit) in last_s:
            yield span.ended_s, last_s[span.step, span.unit]


class _Timed(Protocol):
    @property
    def started_s(self) -> float: ...


_T = TypeVar("_T", bound=_Timed)


def _by_window(windows: Sequence[_Window], items: Iterable[_T]) -> dict[_Window, list[_T]]:
    """Sort what began in the windows by them."""
    found: dict[_Window, list[_T]] = {window: [] for window in windows}
    begins = [window.begin_s for window in windows]
    for item in items:
        index = bisect_right(begins, item.started_s) - 1
        if index >= 0 and item.started_s < windows[index].end_s:
            found[windows[index]].append(item)
    return found


def _queueing(spans: Iterable[Span]) -> dict[str, Queueing]:
    seconds: dict[str, list[float]] = {what: [] for what in WAITS}
    for span in spans:
        seconds[span.waits_for].append(span.seconds)
    return {what: _summed(sorted(times)) for what, times in seconds.items()}


def _summed(times: Sequence[float]) -> Queueing:
    if not times:
        return Queueing()
    return Queueing(len(times), math.fsum(times), times[math.ceil(_PERCENTILE * len(times)) - 1])
