"""A port on the virtual clock that sends chunks, the most urgent message first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from compressa.transports.frames import FRAME_HEADER_BYTES


@dataclass(order=True)
class _Outgoing:
    """A message on its way; ordered by urgency, then by age.

    Attributes:
        priority: What is smallest goes first.
        age: How many came before it.
        peer: Whom it is for.
        left_bytes: What has not been handed over.
        sent: Called when its last byte has left.
        arrived: Called when all of it is there.
        began: Called when its first byte is handed over, if anybody wants to know.
    """

    priority: tuple[int, int]
    age: int
    peer: int = field(compare=False)
    left_bytes: int = field(compare=False)
    sent: Callable[[], None] = field(compare=False)
    arrived: Callable[[], None] = field(compare=False)
    began: Callable[[], None] | None = field(default=None, compare=False)
    _under_way: int = field(default=0, compare=False)

    def take(self, size_bytes: int) -> None:
        """Note that so many more bytes, of `left_bytes`, are handed over as one chunk."""
        if self.began is not None:
            self.began()
            self.began = None
        self.left_bytes -= size_bytes
        self._under_way += 1

    def chunk_arrived(self) -> None:
        """Note that a chunk is there, in any order; the last one calls `arrived`."""
        self._under_way -= 1
        if not self.left_bytes and not self._under_way:
            self.arrived()


Carry = Callable[[int, int, Callable[[], None], Callable[[], None]], None]


class Port:
    """One rank's way out.

    Args:
        carry: Carries so many bytes to a peer, after all that it was given before, and calls back
            when they have left and when they are there.
        chunk_bytes: Most bytes of a chunk.
        credit_bytes: Most bytes that are handed over and have not left, which nothing overtakes,
            with a chunk of full length; one chunk may be. A shorter one is handed over no earlier.
    """

    def __init__(self, carry: Carry, chunk_bytes: int, credit_bytes: int) -> None:
        self._carry = carry
        self._chunk_bytes = chunk_bytes
        self._ahead_bytes = max(credit_bytes - chunk_bytes, 0)
        self._waiting: list[_Outgoing] = []
        self._ages = itertools.count()
        self._unsent_bytes = 0

    def send(
        self,
        peer: int,
        size_bytes: int,
        priority: tuple[int, int],
        sent: Callable[[], None],
        arrived: Callable[[], None],
        began: Callable[[], None] | None = None,
    ) -> None:
        """Queue a message, and hand over what the window has room for.

        Args:
            peer: Whom it is for.
            size_bytes: Length without headers; each chunk has one.
            priority: The smallest goes first, and overtakes what has not been handed over.
            sent: Called when its last byte has left.
            arrived: Called when all of it is there.
            began: Called when its first byte is handed over.
        """
        message = _Outgoing(priority, next(self._ages), peer, size_bytes, sent, arrived, began)
        heapq.heappush(self._waiting, message)
        self._hand_over()

    def _hand_over(self) -> None:
        """Hand chunks over while the window has room."""
        while self._waiting and self._unsent_bytes <= self._ahead_bytes:
            message = self._waiting[0]
            size = min(self._chunk_bytes, message.left_bytes)
            message.take(size)
            if not message.left_bytes:
                heapq.heappop(self._waiting)
            self._unsent_bytes += size
            on_sent = partial(self._on_sent, message, size, last=not message.left_bytes)
            self._carry(message.peer, size + FRAME_HEADER_BYTES, on_sent, message.chunk_arrived)

    def _on_sent(self, message: _Outgoing, size: int, *, last: bool) -> None:
        self._unsent_bytes -= size
        if last:
            message.sent()
        self._hand_over()
