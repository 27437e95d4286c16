"""Hops: a message to each of some ranks, one from each of others; what algorithms are made of.

Every rank goes through the same number of hops, so that a message has the same number on both
ends; in some of them it may have nothing to say, or nothing to hear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import torch

from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch

Spans = tuple[Span, ...]

Finals = dict[Span, torch.Tensor]
"""The messages that the result consists of, as their owners made them, as far as they are known.

Those that land in place need not be kept: they are where the values are.
"""


Came = list[tuple[int, Span, torch.Tensor]]
"""Messages by sender and span."""


class Hop(NamedTuple):
    """One exchange of an all-gather, at one member of a group.

    Attributes:
        to: The members that are sent something, all of them the same.
        sent: The members whose parts they are sent.
        heard: By member that is heard from, those whose parts it sends.
    """

    to: Sequence[int]
    sent: Sequence[int]
    heard: Mapping[int, Sequence[int]]

    def of(
        self, spans: Sequence[Span], group: RankGroup
    ) -> tuple[list[int], Spans, dict[int, Spans]]:
        """Return `to`, `sent` and `heard` with ranks for members, and spans for their parts.

        Args:
            spans: The part of each member, in the order of the group.
            group: Whose members these are.
        """
        part = spans.__getitem__
        heard = {group.at(index): tuple(map(part, whose)) for index, whose in self.heard.items()}
        return list(map(group.at, self.to)), tuple(map(part, self.sent)), heard


def idle(hops: int = 1) -> Program[None]:
    """Go through hops in which this rank has nothing to do.

    Args:
        hops: How many; each is an exchange without messages.
    """
    for _ in range(hops):
        yield Exchange({}, {})


def give_hop(values: Accumulator, scratch: Scratch, peer: int, span: Span) -> Program[None]:
    """Give the partial sum of a span to a rank, and hear nothing.

    Args:
        values: What is summed.
        scratch: As of `reduce_hop`; nothing comes into it.
        peer: The rank that it is given to, and that takes it by `reduce_hop`.
        span: Which of it; another's to sum from then on.
    """
    return reduce_hop(values, scratch, {peer: span}, span)


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

    Raises:
        PayloadError: What comes can not be a partial sum of the span.
    """

    def give() -> dict[int, torch.Tensor]:
        return dict(zip(outgoing, map(values.give, outgoing.values()), strict=True))

    if values.ready:
        messages = give()
    else:
        elems = sum(part.elems for part in outgoing.values())
        messages = yield Compute(give, "encode", values.quick(elems))
    sizes = map(values.capacity_bytes, outgoing.values())
    capacity = dict(zip(outgoing, sizes, strict=True))
    received = yield Exchange(messages, *_rooms(values, scratch, span, after, before), capacity)
    if after or before:
        yield _sum(values, span, received, after, before)


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

    Args:
        values: What is summed.
        scratch: Memory for what comes in.
        span: Which of it.
        author: In whose name this rank's message is made.
        after: Ranks whose values come after this rank's own in the sum, in order.
        before: Those whose values come before.

    Raises:
        PayloadError: What came is not what is due.
    """
    finals = yield from seal(values, span, author)
    messages = dict.fromkeys([*after, *before], finals[span])
    capacity = dict.fromkeys(messages, values.capacity_bytes(span))
    received = yield Exchange(messages, *_rooms(values, scratch, span, after, before), capacity)
    yield _sum(values, span, received, after, before)


def seal(values: Accumulator, span: Span, author: Author) -> Program[Finals]:
    """Declare what this rank holds of a span to be the result; return its message, by span.

    Args:
        values: What was summed; where its messages are lossy, it goes on with what they decode to.
        span: Which of it.
        author: In whose name: the same on all ranks that hold the same bits.
    """
    if values.ready:
        return {span: values.share(span, author)}
    share = partial(values.share, span, author)
    message: torch.Tensor = yield Compute(share, "encode", values.quick(span.elems))
    return {span: message}


def share_hop(
    values: Accumulator,
    scratch: Scratch,
    finals: Finals,
    to: Collection[int],
    sent: Spans,
    heard: Mapping[int, Spans],
    number: int = 0,
) -> Program[None]:
    """Pass results on, as they are; take those of others, and add them to `finals`.

    Args:
        values: Where results go.
        scratch: Memory for those that do not land in place.
        finals: What is known so far.
        to: The ranks that are sent something, all of them the same.
        sent: What: neighbors, of which only the messages of one span may be of unknown length.
        heard: By rank that is heard from, what it sends likewise.
        number: Of the hop among those that pass results on: what came in others stays.
    """
    rooms, kept, elems = {}, {}, 0
    for peer, spans in heard.items():
        span = whole(spans)
        memory = values.landing(span)
        if memory is None:
            kept[peer] = sum(map(values.capacity_bytes, spans))
            elems += span.stop - span.start
        else:
            rooms[peer] = memory
    rooms |= zip(kept, scratch.rooms(number, list(kept.values())), strict=True)
    exact, messages, capacity = values.exact, {}, {}
    if to:
        message = _joined(values, finals, sent)
        messages = dict.fromkeys(to, message)
        size = message.numel() if exact else sum(map(values.capacity_bytes, sent))
        capacity = dict.fromkeys(to, size)
    received = yield Exchange(messages, rooms, exact, capacity)
    if kept:
        came: Came = []
        for peer in kept:
            spans, parts = heard[peer], _parted(values, received[peer], heard[peer])
            finals.update(zip(spans, parts, strict=True))
            came.extend(zip(repeat(peer), spans, parts, strict=False))
        yield Compute(partial(_take, values, came), "decode", values.quick(elems))


def _parted(values: Accumulator, message: torch.Tensor, spans: Spans) -> Sequence[torch.Tensor]:
    """The messages of several spans, which came as one."""
    if len(spans) == 1:
        return (message,)
    return torch.split(message, list(map(values.capacity_bytes, spans)))


def _take(values: Accumulator, came: Came) -> None:
    """Check what has come, and hold it."""
    for sender, span, message in came:
        values.check(span, message, sender)
    values.take([(span, message) for _, span, message in came])


def _rooms(
    values: Accumulator,
    scratch: Scratch,
    span: Span,
    after: Sequence[int],
    before: Sequence[int],
) -> tuple[dict[int, torch.Tensor], bool]:
    """Where partial sums come in: memory that is free again when they are added."""
    peers = (*before, *after)
    rooms = scratch.rooms(0, [values.capacity_bytes(span)] * len(peers))
    return dict(zip(peers, rooms, strict=True)), values.exact


def _sum(
    values: Accumulator,
    span: Span,
    received: Mapping[int, torch.Tensor],
    after: Sequence[int],
    before: Sequence[int],
) -> Compute:
    """Check what has come, and add it."""

    def add() -> None:
        for peer in (*before, *after):
            values.check(span, received[peer], peer)
        given = received.__getitem__
        values.add(span, list(map(given, after)), list(map(given, before)))

    return Compute(add, "decode", values.quick(span.elems * len(received)))


def whole(spans: Sequence[Span]) -> Span:
    """Return several spans that lie side by side, in order, as one; at least one is given."""
    return spans[0] if len(spans) == 1 else Span(spans[0].start, spans[-1].stop)


def _joined(values: Accumulator, finals: Finals, spans: Spans) -> torch.Tensor:
    """One message of several, which lie side by side where they land in place."""
    memory = values.landing(whole(spans))
    if memory is not None:
        return memory
    return finals[spans[0]] if len(spans) == 1 else torch.cat([finals[span] for span in spans])
