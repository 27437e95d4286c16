"""Hops: a message to each of some ranks, one from each of others; what algorithms are made of.

Every rank goes through the same number of hops, so that a message has the same number on both
ends; in some of them it may have nothing to say, or nothing to hear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.scratch import Scratch

T = TypeVar("T")

Finals = dict[Span, torch.Tensor]
"""The messages that the result consists of, as their owners made them, as far as they are known.

Those that land in place need not be kept: they are where the values are.
"""


def idle(hops: int = 1) -> Program[None]:
    """Go through hops in which this rank has nothing to do."""
    for _ in range(hops):
        yield Exchange({}, {})


def give_hop(values: Accumulator, peer: int, span: Span) -> Program[None]:
    """Give partial sums away, and hear nothing."""
    message = yield from _made(values, lambda: values.give(span), span.elems)
    yield Exchange({peer: message}, {}, values.exact, {peer: values.capacity_bytes(span)})


def reduce_hop(
    values: Accumulator,
    scratch: Scratch,
    outgoing: Mapping[int, Span],
    span: Span,
    after: Sequence[int] = (),
    before: Sequence[int] = (),
) -> Program[None]:
    """Give partial sums away, by rank; then add what others give of one span.

    Args:
        values: What is summed.
        scratch: Memory for what comes in.
        outgoing: By rank, what it is given.
        span: What is added to, and given by others.
        after: Ranks whose values come after this rank's own in the sum, in order.
        before: Those whose values come before.
    """

    def give() -> dict[int, torch.Tensor]:
        return {peer: values.give(part) for peer, part in outgoing.items()}

    elems = sum(part.elems for part in outgoing.values())
    messages = yield from _made(values, give, elems)
    capacity = {peer: values.capacity_bytes(part) for peer, part in outgoing.items()}
    yield from _add(values, scratch, messages, capacity, span, after, before)


def swap_hop(
    values: Accumulator,
    scratch: Scratch,
    span: Span,
    author: Author,
    after: Sequence[int],
    before: Sequence[int] = (),
) -> Program[None]:
    """Add others' partial sums while they add this rank's: all hold the same bits afterwards.

    Where more than two swap, `before` and `after` are to name the same order on each.
    """
    message = yield from _share(values, span, author)
    messages = dict.fromkeys([*after, *before], message)
    capacity = dict.fromkeys(messages, values.capacity_bytes(span))
    yield from _add(values, scratch, messages, capacity, span, after, before)


def seal(values: Accumulator, span: Span, author: Author) -> Program[Finals]:
    """Declare what this rank holds to be the result."""
    message = yield from _share(values, span, author)
    return {span: message}


def share_hop(
    values: Accumulator,
    scratch: Scratch,
    finals: Finals,
    outgoing: Mapping[int, Sequence[Span]],
    incoming: Mapping[int, Sequence[Span]],
) -> Program[None]:
    """Pass results on, as they are; take those of others, and add them to `finals`.

    Args:
        values: Where results go.
        scratch: Memory for those that do not land in place.
        finals: What is known so far.
        outgoing: By rank, what it is sent: neighbors, of which only the messages of one span may be
            of unknown length.
        incoming: The same of what it sends.
    """
    rooms, kept = {}, {}
    for peer, spans in incoming.items():
        place = values.landing(whole(spans))
        if place is None:
            place = scratch.room(("final", *whole(spans)), _capacity(values, spans))
            kept[peer] = spans
        rooms[peer] = place
    messages = {peer: _joined(values, finals, spans) for peer, spans in outgoing.items()}
    capacity = {
        peer: messages[peer].numel() if values.exact else _capacity(values, spans)
        for peer, spans in outgoing.items()
    }
    received = yield Exchange(messages, rooms, values.exact, capacity)
    came: Finals = {}
    senders: dict[Span, int] = {}
    for peer, spans in kept.items():
        came |= _parted(values, received[peer], spans)
        senders |= dict.fromkeys(spans, peer)
    finals |= came

    def take() -> None:
        for span, message in came.items():
            values.check(span, message, senders[span])
            values.take(span, message)

    if came:
        yield Compute(take, "decode", values.quick(sum(span.elems for span in came)))


def _share(values: Accumulator, span: Span, author: Author) -> Program[torch.Tensor]:
    message = yield from _made(values, lambda: values.share(span, author), span.elems)
    return message


def _made(values: Accumulator, make: Callable[[], T], elems: int) -> Program[T]:
    """Make messages of so many elements."""
    if values.in_place:
        return make()
    made: T = yield Compute(make, "encode", values.quick(elems))
    return made


def _add(
    values: Accumulator,
    scratch: Scratch,
    messages: Mapping[int, torch.Tensor],
    capacity: Mapping[int, int],
    span: Span,
    after: Sequence[int],
    before: Sequence[int],
) -> Program[None]:
    """Send messages, and add those that come: their memory is free again when this has ended."""
    peers, size = [*before, *after], values.capacity_bytes(span)
    # Where nothing is summed, another segment that begins at the same place may be under way.
    name = span.start if span.elems else span
    rooms = {p: scratch.room(("partial", i, name), size) for i, p in enumerate(peers)}
    received = yield Exchange(messages, rooms, values.exact, capacity)

    def add() -> None:
        for peer in peers:
            values.check(span, received[peer], peer)
        values.add(span, [received[p] for p in after], [received[p] for p in before])

    if peers:
        yield Compute(add, "decode", values.quick(span.elems * len(peers)))


def whole(spans: Sequence[Span]) -> Span:
    """Several that lie side by side, as one."""
    return Span(spans[0].start, spans[-1].stop)


def _capacity(values: Accumulator, spans: Sequence[Span]) -> int:
    return sum(values.capacity_bytes(span) for span in spans)


def _joined(values: Accumulator, finals: Finals, spans: Sequence[Span]) -> torch.Tensor:
    """One message of several, which lie side by side where they land in place."""
    place = values.landing(whole(spans))
    if place is not None:
        return place
    return finals[spans[0]] if len(spans) == 1 else torch.cat([finals[span] for span in spans])


def _parted(values: Accumulator, message: torch.Tensor, spans: Sequence[Span]) -> Finals:
    if len(spans) == 1:
        return {spans[0]: message}
    sizes = [values.capacity_bytes(span) for span in spans]
    return dict(zip(spans, torch.split(message, sizes), strict=True))
