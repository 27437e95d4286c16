"""Hops: a message to each of some ranks, one from each of others; what algorithms are made of.

Every rank goes through the same number of hops, so that a message has the same number on both
ends; in some of them it may have nothing to say, or nothing to hear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.scratch import Scratch

Finals = dict[Span, torch.Tensor]
"""What is known of the result: the message of each span, as its owner has made it."""


def reduce_hop(
    values: Accumulator,
    scratch: Scratch,
    outgoing: Mapping[int, Span],
    incoming: Mapping[int, Span],
) -> Program[None]:
    """Give partial sums away, by rank; then add those of others, in the order of `incoming`."""

    def give() -> dict[int, torch.Tensor]:
        return {peer: values.give(span) for peer, span in outgoing.items()}

    messages = yield Compute(give, "encode", _quick(values, outgoing.values()))
    yield from _add(values, scratch, outgoing, incoming, messages)


def swap_hop(values: Accumulator, scratch: Scratch, peer: int, span: Span) -> Program[None]:
    """Add a peer's partial sum while it adds this rank's: both hold the same bits afterwards."""
    message = yield Compute(lambda: values.share(span), "encode", values.quick(span))
    yield from _add(values, scratch, {peer: span}, {peer: span}, {peer: message})


def seal(values: Accumulator, span: Span) -> Program[Finals]:
    """Declare what this rank holds to be the result."""
    message = yield Compute(lambda: values.share(span), "encode", values.quick(span))
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
    rooms, landed = {}, set()
    for peer, spans in incoming.items():
        place = values.landing(_whole(spans))
        if place is None:
            place = scratch.room(("final", *_whole(spans)), _capacity(values, spans))
        else:
            landed.add(peer)
        rooms[peer] = place
    messages = {peer: _joined(values, finals, spans) for peer, spans in outgoing.items()}
    capacity = {peer: _capacity(values, spans) for peer, spans in outgoing.items()}
    received = yield Exchange(messages, rooms, values.exact, capacity)
    came = {peer: _parted(values, received[peer], spans) for peer, spans in incoming.items()}
    for known in came.values():
        finals |= known
    to_take = [item for peer, known in came.items() if peer not in landed for item in known.items()]

    def take() -> None:
        for span, message in to_take:
            values.take(span, message)

    if to_take:
        yield Compute(take, "decode", _quick(values, [span for span, _ in to_take]))


def _add(
    values: Accumulator,
    scratch: Scratch,
    outgoing: Mapping[int, Span],
    incoming: Mapping[int, Span],
    messages: Mapping[int, torch.Tensor],
) -> Program[None]:
    rooms = {
        peer: scratch.room(("partial", peer, span.start), values.capacity_bytes(span))
        for peer, span in incoming.items()
    }
    capacity = {peer: values.capacity_bytes(span) for peer, span in outgoing.items()}
    received = yield Exchange(messages, rooms, values.exact, capacity)

    def add() -> None:
        for peer, span in incoming.items():
            values.add(span, received[peer])

    if incoming:
        yield Compute(add, "decode", _quick(values, incoming.values()))


def _quick(values: Accumulator, spans: Iterable[Span]) -> bool:
    return all(values.quick(span) for span in spans)


def _whole(spans: Sequence[Span]) -> Span:
    return Span(spans[0].start, spans[-1].stop)


def _capacity(values: Accumulator, spans: Sequence[Span]) -> int:
    return sum(values.capacity_bytes(span) for span in spans)


def _joined(values: Accumulator, finals: Finals, spans: Sequence[Span]) -> torch.Tensor:
    """One message of several, which lie side by side where they land in place."""
    if len(spans) == 1:
        return finals[spans[0]]
    place = values.landing(_whole(spans))
    return torch.cat([finals[span] for span in spans]) if place is None else place


def _parted(values: Accumulator, message: torch.Tensor, spans: Sequence[Span]) -> Finals:
    if len(spans) == 1:
        return {spans[0]: message}
    sizes = [values.capacity_bytes(span) for span in spans]
    return dict(zip(spans, torch.split(message, sizes), strict=True))
