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
            result += _told_apart(span, [(name, left.get(name, [])) for name in names])
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


def _told_apart(wire: Span, left: Sequence[tuple[_Exchange, Sequence[Interval]]]) -> Iterator[Span]:
    """The time in the outbox; then the rest, and when the last byte had left: hop by hop."""
    firsts_s = [begin_s for _, messages in left for begin_s, _ in messages]
    if not firsts_s:
        yield wire
        return
    first_s = min(max(min(firsts_s), wire.started_s), wire.ended_s)
    waited_s = first_s - wire.started_s
    yield wire._replace(
        stage="queued", seconds=waited_s, waits_for="outbox", size_bytes=0, peers=0, exchanges=1
    )
    carried = wire._replace(started_s=first_s, seconds=wire.ended_s - first_s)
    if len(left) == 1:
        yield _sent(carried, left[0][1])
        return
    yield carried
    for (_, _, number), messages in left:
        if messages:
            begin_s = min(max(min(messages)[0], first_s), wire.ended_s)
            hop = carried._replace(number=number, size_bytes=0, peers=0, exchanges=1)
            hop = hop._replace(started_s=begin_s, seconds=wire.ended_s - begin_s)
            yield _sent(hop, messages)


def _sent(wire: Span, messages: Sequence[Interval]) -> Span:
    last_s = max(end_s for _, end_s in messages)
    return wire._replace(sent_s=min(max(last_s, wire.started_s), wire.ended_s))


def _arrivals(wire: Span, name: _Exchange, came: Sequence[Interval]) -> Iterator[Span]:
    """As few as there are; what came in one piece has no length, and tells when it came."""
    arrival = wire._replace(stage="arrive", number=name[-1], size_bytes=0, peers=0, exchanges=1)
    for begin_s, end_s in merged(came, empty=True):
        yield arrival._replace(started_s=begin_s, seconds=end_s - begin_s)
