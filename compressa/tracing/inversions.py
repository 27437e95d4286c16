"""Priority inversions: what is needed earlier waited to leave while what is needed later was sent.

Where preemption is as good as it can be, a unit waits for what cannot be taken back any more, which
is at most the credit in flight; where there is none, it waits for whole messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from compressa.tracing.events import Span

_Urgency = tuple[int, int]  # step and number in the order of need; less is more urgent


class Inversion(NamedTuple):
    """One exchange that waited while others, needed later, were sent.

    Attributes:
        started_s: When it began to wait.
        seconds: How long it waited while any of the others was sent.
    """

    started_s: float
    seconds: float


class _Change(NamedTuple):
    time_s: float
    begins: bool
    waits: bool
    number: int
    urgency: _Urgency


def inversions(spans: Sequence[Span]) -> Iterator[Inversion]:
    """Find all of a trace; what waits for a thread that encodes is not ready to leave."""
    needs = {(s.step, s.unit): s.need for s in spans if s.stage == "ready"}
    changes: list[_Change] = []
    for number, span in enumerate(spans):
        waits = span.waits_for in ("turn", "outbox")
        if (waits or span.stage == "wire") and (span.step, span.unit) in needs:
            urgency = span.step, needs[span.step, span.unit]
            until_s = span.ended_s if waits or span.sent_s is None else span.sent_s
            if until_s > span.started_s:
                changes.append(_Change(span.started_s, True, waits, number, urgency))
                changes.append(_Change(until_s, False, waits, number, urgency))
    for number, seconds in _inverted_s(sorted(changes)).items():
        yield Inversion(spans[number].started_s, seconds)


def _inverted_s(changes: Iterable[_Change]) -> dict[int, float]:
    """By number of the span that waits, for how long it did so out of turn."""
    found: dict[int, float] = {}
    waiting: dict[int, _Urgency] = {}
    sending: dict[int, _Urgency] = {}
    now_s = 0.0
    for change in changes:
        seconds, now_s = change.time_s - now_s, change.time_s
        if seconds > 0 and waiting and sending:
            least_urgent = max(sending.values())
            for number, urgency in waiting.items():
                if urgency < least_urgent:
                    found[number] = found.get(number, 0.0) + seconds
        under_way = waiting if change.waits else sending
        if change.begins:
            under_way[change.number] = change.urgency
        else:
            del under_way[change.number]
    return found
