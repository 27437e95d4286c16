"""Messages: an exchange as a program of one hop, which adds nothing and is filled in each time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.collectives.base import Exchange
from compressa.collectives.lowering import VALUES, Extent, HopTable, lowered_hops
from compressa.transports.base import Received
from compressa.transports.lowered import _words as w
from compressa.transports.lowered.links import Links
from compressa.transports.lowered.program import LoweredProgram

_WHERE, _SHORTER = slice(w.R_OFFSET, w.R_BYTES + 1), w.R_SHORTER
_SOMEWHERE = Extent(VALUES, 0, 1)


class Messages:
    """What is sent to some ranks and received from others, again and again, once at a time.

    Args:
        to: Whom it sends something.
        heard: Who sends it something.
        links: Of the loop that runs it.

    Attributes:
        program: Of addresses: its values begin at 0.
    """

    def __init__(self, to: Sequence[int], heard: Sequence[int], links: Links) -> None:
        hop = HopTable(0, dict.fromkeys(to, _SOMEWHERE), dict.fromkeys(heard, _SOMEWHERE))
        self.program = LoweredProgram(lowered_hops([hop], 0, 0), torch.uint8, links)
        self._rows = self.program.rows
        self._received = self._rows[len(to) :]
        self._exchange: Exchange | None = None

    def lend(self, exchange: Exchange) -> None:
        """Fill in where messages are and where they go; memory is lent until `received`."""
        self._exchange = exchange
        buffers = (*exchange.outgoing.values(), *exchange.incoming.values())
        where = [(buffer.data_ptr(), buffer.numel()) for buffer in buffers]
        self._rows[:, _WHERE] = [(at, length) for at, length in where if length]
        self._received[:, _SHORTER] = not exchange.exact
        self.program.make_room()

    def received(self) -> Received:
        """Return what has come, all of it: the filled fronts of the buffers."""
        assert self._exchange is not None, "lend comes first"
        incoming, self._exchange = self._exchange.incoming, None
        lengths = iter(self._received[:, w.R_BYTES].tolist())
        return {
            peer: _front(buffer, next(lengths)) if buffer.numel() else buffer
            for peer, buffer in incoming.items()
        }


def _front(buffer: torch.Tensor, length: int) -> torch.Tensor:
    return buffer if length == buffer.numel() else buffer[:length]


def shape_of(exchange: Exchange) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return to whom an exchange sends something, and from whom it receives something."""
    to = tuple(peer for peer, buffer in exchange.outgoing.items() if buffer.numel())
    return to, tuple(peer for peer, buffer in exchange.incoming.items() if buffer.numel())
