"""Assembly: what transports tell of single messages, put to the exchanges that they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from compressa.tracing.events import Span
from compressa.tracing.intervals import Interval, merged

# Not stages: from the first byte of a message to its last, of one that left and of one that came.
LEFT = "left"
CAME = "came"

_Exchange = tuple[int, int, int]  # step, unit and number


def assembled(spans: Sequence[Span]) -> list[Span]:
    """Tell the time in the outbox from that on the wire, and when on the wire messages arrived.

    Args:
        spans: As they were recorded, with those of messages.

    Returns:
        In stages only.
    """
    left = _messages(spans, LEFT)
    came = _messages(spans, CAME)
    result: list[Span] = []
    for span in spans:
        if span.stage == "wire":
            names = list(_exchanges(span))
            if len(names) > 1:
                result += _hop_by_hop(span, [(name, left.get(name, [])) for name in names])
            else:
                result += _told_apart(span, left.get(names[0], []))
            for name in names:
                result += _arrivals(span, name, came.pop(name, []))
        elif span.stage not in (LEFT, CAME):
            result.append(span)
    return result


def _exchange(span: Span) -> _Exchange:
    return span.step, span.unit, span.number


def _exchanges(span: Span) -> Iterator[_Exchange]:
    """Those that a span on the wire stands for."""
    for i in range(span.exchanges):
        yield span.step, span.unit, span.number + i * span.stride


def _messages(spans: Iterable[Span], kind: str) -> dict[_Exchange, list[Interval]]:
    found: defaultdict[_Exchange, list[Interval]] = defaultdict(list)
    for span in spans:
        if span.stage == kind:
            found[_exchange(span)].append((span.started_s, span.ended_s))
    return found


def _told_apart(wire: Span, left: Sequence[Interval]) -> list[Span]:
    if not left:
        return [wire]
    first_s, last_s = (
        min(max(time_s, wire.started_s), wire.ended_s)
        for time_s in (min(begin for begin, _ in left), max(end for _, end in left))
    )
    queued = wire._replace(
        stage="queued", seconds=first_s - wire.started_s, waits_for="outbox", size_bytes=0, peers=0
    )
    carried = wire._replace(started_s=first_s, seconds=wire.ended_s - first_s, sent_s=last_s)
    return [queued, carried]


def _hop_by_hop(wire: Span, left: Sequence[tuple[_Exchange, Sequence[Interval]]]) -> Iterator[Span]:
    """What stands for several exchanges, and of each when it left; what is between is its own."""
    firsts_s = [begin_s for _, messages in left for begin_s, _ in messages]
    queued_s = max(min(firsts_s, default=wire.started_s) - wire.started_s, 0.0)
    queued = wire._replace(
        stage="queued", seconds=queued_s, waits_for="outbox", size_bytes=0, peers=0
    )
    if firsts_s:
        yield queued
    yield wire._replace(started_s=queued.ended_s, seconds=wire.seconds - queued_s)
    for (_, _, number), messages in left:
        if messages:
            first_s, last_s = min(messages)[0], max(end_s for _, end_s in messages)
            seconds = max(wire.ended_s, last_s) - first_s
            hop = wire._replace(started_s=first_s, seconds=seconds, sent_s=last_s)
            yield hop._replace(number=number, size_bytes=0, peers=0, exchanges=1)


def _arrivals(wire: Span, name: _Exchange, came: Sequence[Interval]) -> Iterator[Span]:
    """As few as there are; what came in one piece has no length, and tells when it came."""
    arrival = wire._replace(stage="arrive", number=name[-1], size_bytes=0, peers=0, exchanges=1)
    for begin_s, end_s in merged(came, empty=True):
        yield arrival._replace(started_s=begin_s, seconds=end_s - begin_s)
