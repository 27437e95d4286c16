"""Outbox: messages to one peer, cut into frames, the most urgent message first."""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from compressa.transports.base import Key, OnSent
from compressa.transports.frames import NO_DATA, Frame, Kind

_NOWHERE, _LAST = Key(0, 0, 0), (sys.maxsize, 0)


@dataclass(order=True, slots=True)
class _Message:
    """A message under way; ordered by urgency, then by age."""

    priority: tuple[int, int]
    age: int
    key: Key = field(compare=False)
    memory: memoryview = field(compare=False)
    sent: Callable[[], None] = field(compare=False)
    on_sent: OnSent | None = field(compare=False)
    kind: Kind = field(default=Kind.DATA, compare=False)
    offset: int = field(default=0, compare=False)
    under_way: int = field(default=0, compare=False)
    left_s: float = field(default=0.0, compare=False)

    def handed_over(self) -> None:
        """Note that one of its frames has left; the last to be taken need not be the last."""
        self.under_way -= 1
        if not self.under_way and self.offset == len(self.memory):
            if self.on_sent is not None:
                self.on_sent(self.key, self.left_s, time.perf_counter())
            self.sent()


class OutgoingFrame(NamedTuple):
    """What is to be sent next.

    Attributes:
        frame: Its header.
        data: `frame.data_bytes` bytes of the message's own memory.
        message: What it is cut from; `handed_over` is to be called when `data` may be reused.
    """

    frame: Frame
    data: memoryview
    message: _Message


class Source(Protocol):
    """Where frames come from; several connections may share one.

    Attributes:
        ending: Whether nothing is added to what is there.
    """

    ending: bool

    def take(self) -> OutgoingFrame | None:
        """Return what is to be sent next, now; None if there is nothing, or it must wait."""

    def give_back(self, frames: Sequence[OutgoingFrame]) -> None:
        """Have again the frames that were taken last, in the order in which they were taken.

        The kernel has taken nothing of them.
        """

    @property
    def over(self) -> bool:
        """Whether `take` will never return anything again."""


class Leaving:
    """A frame that is being handed to the kernel.

    Args:
        item: What is sent.
        header: The frame's.

    Attributes:
        parts: What is left of it.
        sent: To be called when nothing is; None if nobody waits for it any more.
    """

    __slots__ = ("parts", "sent")

    def __init__(self, item: OutgoingFrame, header: bytearray) -> None:
        self.parts = [memoryview(header), item.data]
        self.sent: Callable[[], None] | None = item.message.handed_over

    @property
    def left_bytes(self) -> int:
        """Bytes of the header and the data that have not been taken."""
        return sum(map(len, self.parts))

    def advance(self, count: int) -> None:
        """Note that the kernel has taken so many bytes more, fewer than `left_bytes`."""
        while count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        self.parts[0] = self.parts[0][count:]


class Outbox:
    """Messages to one peer; without locks. Several may take frames and send them side by side.

    It is true as long as there is a frame to take.

    Args:
        epoch: Epoch of the transport.
        chunk_bytes: Most bytes of data in a frame.

    Attributes:
        messages: How many have been taken whole, frames that carry nothing included.
    """

    def __init__(self, epoch: int, chunk_bytes: int) -> None:
        self._epoch = epoch
        self._chunk_bytes = chunk_bytes
        self._heap: list[_Message] = []
        self._ages = itertools.count()
        self._on_sent: OnSent | None = None
        self.messages = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def observe(self, on_sent: OnSent | None) -> None:
        """Have a function called with each message that has left; see `Transport.observe`."""
        self._on_sent = on_sent

    def push(
        self, key: Key, buffer: torch.Tensor, priority: tuple[int, int], sent: Callable[[], None]
    ) -> None:
        """Queue a message; the one with the smallest priority goes first, then the oldest.

        Args:
            key: Its name.
            buffer: uint8, contiguous, on the CPU; its memory is lent, not copied.
            priority: Step, then number in the plan.
            sent: Called when all of its frames are sent.
        """
        memory = buffer.numpy().data
        message = _Message(priority, next(self._ages), key, memory, sent, self._on_sent)
        heapq.heappush(self._heap, message)

    def push_sign(self, kind: Kind) -> None:
        """Queue a frame that carries nothing, behind all messages: a sign of life, or a goodbye."""
        sign = _Message(_LAST, next(self._ages), _NOWHERE, NO_DATA, _nobody_waits, None, kind)
        heapq.heappush(self._heap, sign)

    def next_frame(self) -> OutgoingFrame:
        """Take a frame of the most urgent message; there must be one."""
        message = self._heap[0]
        total, offset = len(message.memory), message.offset
        if not offset:
            message.left_s = time.perf_counter()
        length = min(self._chunk_bytes, total - offset)
        message.offset += length
        message.under_way += 1
        if message.offset == total:
            heapq.heappop(self._heap)
            self.messages += 1
        return OutgoingFrame(
            Frame(message.kind, self._epoch, message.key, total, offset, length),
            message.memory[offset : offset + length],
            message,
        )

    def give_back(self, item: OutgoingFrame) -> None:
        """Have a frame again, to be taken anew: the last one that has not been given back yet."""
        message = item.message
        if message.offset == len(message.memory):
            heapq.heappush(self._heap, message)
            self.messages -= 1
        message.offset = item.frame.offset_bytes
        message.under_way -= 1

    def clear(self) -> None:
        """Forget what was not taken; no `sent` of it is called."""
        self._heap.clear()


def _nobody_waits() -> None:
    """What carries nothing lends no memory."""
