"""Lengths: what goes ahead of messages whose length only their sender knows.

NCCL carries what both ends know the length of. So each rank first tells its peers how long their
messages are, 8 bytes each; the host waits for what it is told, and then messages are sent in
their length. That costs a latency of the network and a wait of the host, by estimate 0.1 ms
together, in which nothing else can be launched: all ranks launch in one order, and which lengths
come first differs from rank to rank.

A message of at most `PADDED_BYTES` saves less than that. It follows its length at once, padded to
what its receiver has room for, and holds nothing up. Both ends know how much room there is, so
they agree on which messages are padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from compressa.collectives.base import Exchange
from compressa.errors import PayloadError

PADDED_BYTES = 64 << 10
"""What a network of 10 Gbit/s carries in 50 us, half of what it takes to learn a length."""

_LENGTH_BYTES = 8


class Messages(NamedTuple):
    """What one group call carries.

    Attributes:
        outgoing: By peer that is sent to.
        incoming: By peer that is heard from.
    """

    outgoing: Mapping[int, torch.Tensor]
    incoming: Mapping[int, torch.Tensor]


class Lengths:
    """The group calls of one exchange that is not exact, in the order in which they are launched.

    Args:
        exchange: It; what this makes for it is made on the current stream.
        rank: This rank, for messages of errors.
        device: Where its buffers are.

    Attributes:
        told: The lengths.
        padded: The messages that follow at once.
        held: Whether others follow when lengths are known.

    Raises:
        PayloadError: A message is longer than its receiver has room for.
    """

    def __init__(self, exchange: Exchange, rank: int, device: torch.device) -> None:
        self._exchange = exchange
        for peer, data in exchange.outgoing.items():
            most = exchange.capacity_bytes[peer]
            if data.numel() > most:
                raise PayloadError(
                    f"rank {rank} has {data.numel()} bytes for rank {peer}, which expects at most "
                    f"{most}"
                )
        sizes = [data.numel() for data in exchange.outgoing.values()]
        own = torch.empty(len(sizes), dtype=torch.int64, device=device)
        if sizes:
            self._sizes = torch.tensor(sizes, dtype=torch.int64, pin_memory=True)
            own.copy_(self._sizes, non_blocking=True)
        self._theirs = torch.empty(len(exchange.incoming), dtype=torch.int64, device=device)
        self._known = torch.empty(len(exchange.incoming), dtype=torch.int64, pin_memory=True)
        self.told = Messages(_each(exchange.outgoing, own), _each(exchange.incoming, self._theirs))
        small = {p for p, most in exchange.capacity_bytes.items() if most <= PADDED_BYTES}
        self.padded = Messages(
            _padded({p: data for p, data in exchange.outgoing.items() if p in small}, exchange),
            {p: b for p, b in exchange.incoming.items() if b.numel() <= PADDED_BYTES},
        )
        self._rest = {p: data for p, data in exchange.outgoing.items() if p not in small}
        self.held = bool(self._rest) or len(self.padded.incoming) < len(exchange.incoming)

    def fetch(self) -> torch.cuda.Event:
        """Have the current stream bring to the host what was told; return when it is there."""
        self._known.copy_(self._theirs, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record()
        return event

    def received(self) -> dict[int, torch.Tensor]:
        """Return, by peer, what is or will be filled of its buffer; once lengths are there.

        Raises:
            PayloadError: There can be no message of such a length.
        """
        filled = {}
        for (peer, buffer), length in zip(
            self._exchange.incoming.items(), self._known.tolist(), strict=True
        ):
            if not 0 <= length <= buffer.numel():
                raise PayloadError(
                    f"rank {peer} says that it sent {length} bytes, of at most {buffer.numel()}"
                )
            filled[peer] = buffer[:length]
        return filled

    def rest(self, received: Mapping[int, torch.Tensor]) -> Messages:
        """Return the messages that were held, in their length.

        Args:
            received: As `received` has returned it.
        """
        small = self.padded.incoming.keys()
        return Messages(self._rest, {p: room for p, room in received.items() if p not in small})


def _each(peers: Mapping[int, torch.Tensor], lengths: torch.Tensor) -> dict[int, torch.Tensor]:
    """The bytes of one length for each peer."""
    parts = lengths.view(torch.uint8).view(-1, _LENGTH_BYTES).unbind()
    return dict(zip(peers, parts, strict=True))


def _padded(outgoing: Mapping[int, torch.Tensor], exchange: Exchange) -> dict[int, torch.Tensor]:
    """Messages as long as their receivers have room; what goes to several is copied once."""
    made: dict[tuple[int, int, int], torch.Tensor] = {}
    rooms = {}
    for peer, data in outgoing.items():
        size = exchange.capacity_bytes[peer]
        which = data.data_ptr(), data.numel(), size
        if which not in made:
            made[which] = data if data.numel() == size else _lengthened(data, size)
        rooms[peer] = made[which]
    return rooms


def _lengthened(data: torch.Tensor, size: int) -> torch.Tensor:
    room = data.new_empty(size)
    room[: data.numel()].copy_(data)
    return room
