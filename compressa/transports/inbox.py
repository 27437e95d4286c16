"""Inbox: assembles frames into messages, in place where the receiver already waits.

A message can come before its receiver asks for it: a peer may be ahead by as much as a step.
It is then kept aside, within a limit, and copied when it is asked for.

No byte of a message is taken twice, so it is whole when as many have been written as it has.
Where frames come over one connection, each must begin where the one before it ended. Over
several they overtake each other: each must then be one whole chunk, which had not begun yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from compressa.errors import PayloadError
from compressa.transports.base import Key, OnCome
from compressa.transports.frames import Frame

Arrived = Callable[[torch.Tensor], None]

_MOST_STEP = 0xFFFFFFFF  # a frame has 32 bits for it


@dataclass(slots=True)
class _Message:
    """A message under way; either side may come first."""

    buffer: torch.Tensor
    memory: memoryview
    message_bytes: int = -1
    arrived: Arrived | None = None
    owed: bool = True
    begun_bytes: int = 0
    received_bytes: int = 0
    begun_s: float | None = None  # if anybody wants to know
    begun: set[int] = field(default_factory=set)  # offsets, where chunks come in any order

    @property
    def complete(self) -> bool:
        return self.received_bytes == self.message_bytes

    @property
    def filled(self) -> torch.Tensor:
        """The front of the buffer that it fills."""
        whole = self.message_bytes == len(self.memory)
        return self.buffer if whole else self.buffer[: self.message_bytes]


class Inbox:
    """Messages from one peer; from any thread.

    Args:
        peer: The peer's rank, for messages.
        limit_bytes: Most bytes, of all messages together, that nobody has asked for yet.
        any_order_bytes: Length of the chunks, if they may come in any order; else None.
        way: From whom to whom and over what they come, for messages.
    """

    def __init__(
        self, peer: int, limit_bytes: int, any_order_bytes: int | None = None, way: str = ""
    ) -> None:
        self._peer = peer
        self.way = way or f"from rank {peer}"
        self._limit_bytes = limit_bytes
        self._any_order_bytes = any_order_bytes
        self._early_bytes = 0
        self._messages: dict[Key, _Message] = {}
        self._lock = threading.Lock()
        self._on_come: OnCome | None = None

    def hear(self, on_come: OnCome | None) -> None:
        """Have a function called with each message that has come whole; see `Transport.hear`."""
        self._on_come = on_come

    def expect(
        self, key: Key, buffer: torch.Tensor, exact: bool, arrived: Arrived, *, owed: bool = True
    ) -> None:
        """Ask for a message.

        Args:
            key: Its name.
            buffer: uint8, not empty; where it goes, and so the most that it may have.
            exact: Whether it must fill the buffer.
            arrived: Called once, with the filled front of `buffer`, when it is complete: on the
                thread that takes its last frame, or in this call if all of it is here.
            owed: Whether the peer must send it before it leaves.

        Raises:
            PayloadError: It has come already and has the wrong length.
        """
        if key.step > _MOST_STEP:
            key = _wrapped(key)
        with self._lock:
            message = self._messages.get(key)
            if message is None:
                length, memory = buffer.numel() if exact else -1, buffer.numpy().data
                self._messages[key] = _Message(buffer, memory, length, arrived, owed)
                return
            self._check_length(key, message.message_bytes, buffer, exact)
            self._adopt(message, buffer)
            message.arrived = arrived
            if not message.complete:
                return
            del self._messages[key]
        arrived(message.filled)

    def accept(self, frame: Frame, data: memoryview) -> None:
        """Take a frame's data.

        Args:
            frame: Its header, already checked by itself.
            data: `frame.data_bytes` bytes; copied.

        Raises:
            PayloadError: It contradicts what is expected, exceeds the limit, or is empty.
        """
        with self._lock:
            message = self._begin(frame)
            start = frame.offset_bytes
            message.memory[start : start + frame.data_bytes] = data
            arrived = self._filled(message, frame)
        if arrived is not None:
            arrived(message.filled)

    def begin(self, frame: Frame) -> None:
        """Reserve the room of a frame whose data is to be written there, instead of handed in.

        Then come `room`, as often as needed, and `filled`; other frames may come in between.

        Raises:
            PayloadError: As for `accept`.
        """
        with self._lock:
            self._begin(frame)

    def room(self, frame: Frame) -> memoryview:
        """Return where the data of a frame that has begun belongs: `frame.data_bytes` bytes.

        It may be asked for again until `filled` is called, and may have moved by then, with what
        has been written.
        """
        with self._lock:
            memory, start = self._messages[frame.key].memory, frame.offset_bytes
            return memory[start : start + frame.data_bytes]

    def filled(self, frame: Frame) -> None:
        """Note that all of a frame's data has been written to its room, and passed its check.

        Calls `arrived` if that completes a message that was asked for.
        """
        with self._lock:
            message = self._messages.get(frame.key)
            if message is None:
                return  # forgotten meanwhile
            arrived = self._filled(message, frame)
        if arrived is not None:
            arrived(message.filled)

    def waits_for(self, key: Key) -> bool:
        """Return whether a message was asked for and is not complete."""
        with self._lock:
            message = self._messages.get(_wrapped(key))
            return message is not None and message.arrived is not None

    @property
    def in_order(self) -> bool:
        """Whether the frames of a message come one behind the other."""
        return self._any_order_bytes is None

    @property
    def asked(self) -> bool:
        """Whether anything that the peer owes has not come."""
        with self._lock:
            return any(m.arrived is not None and m.owed for m in self._messages.values())

    def disown(self, key: Key) -> None:
        """Go on waiting for a message; the peer may leave without sending it."""
        with self._lock:
            message = self._messages.get(_wrapped(key))
            if message is not None:
                message.owed = False

    def forget(self, unit: int, step: int) -> None:
        """Forget a unit's messages of steps up to this one, those that were asked for as well.

        Their `arrived` is never called. None of it may still be on its way: it would count as new.

        Args:
            unit: Number of the unit.
            step: The last step whose messages are forgotten.
        """
        with self._lock:
            for key in [k for k in self._messages if k.unit == unit and k.step <= step]:
                message = self._messages.pop(key)
                if message.arrived is None:
                    self._early_bytes -= message.message_bytes

    def clear(self) -> None:
        """Forget everything: no memory that was lent is written from now on; nobody is called."""
        with self._lock:
            self._messages.clear()

    def _begin(self, frame: Frame) -> _Message:
        if frame.data_bytes == 0:
            # Empty messages are never sent; taken in, they would count towards no limit.
            raise PayloadError(f"rank {self._peer} sends a frame of data that holds none")
        message = self._messages.get(frame.key) or self._early(frame)
        if message.message_bytes != frame.message_bytes:
            self._settle_length(message, frame)
        if self._on_come is not None and not (message.begun_bytes or message.begun):
            message.begun_s = time.perf_counter()
        if self._any_order_bytes is None:
            if frame.offset_bytes != message.begun_bytes:
                raise PayloadError(
                    f"rank {self._peer} sends byte {frame.offset_bytes} of a message where byte "
                    f"{message.begun_bytes} is due"
                )
            message.begun_bytes += frame.data_bytes
        else:
            self._check_chunk(message, frame, self._any_order_bytes)
            message.begun.add(frame.offset_bytes)
        return message

    def _filled(self, message: _Message, frame: Frame) -> Arrived | None:
        """Count a frame; return whom to tell if its message is complete and was asked for."""
        message.received_bytes += frame.data_bytes
        if not message.complete:
            return None
        if self._on_come is not None and message.begun_s is not None:
            self._on_come(frame.key, message.begun_s, time.perf_counter())
        if message.arrived is not None:
            del self._messages[frame.key]
        return message.arrived

    def _early(self, frame: Frame) -> _Message:
        """Make room for a message that nobody has asked for yet."""
        self._early_bytes += frame.message_bytes
        if self._early_bytes > self._limit_bytes:
            raise PayloadError(
                f"rank {self._peer} sent {self._early_bytes} bytes that nobody waits for, more "
                f"than the {self._limit_bytes} that a whole step has"
            )
        buffer = torch.empty(frame.message_bytes, dtype=torch.uint8)
        message = _Message(buffer, buffer.numpy().data, frame.message_bytes)
        self._messages[frame.key] = message
        return message

    def _adopt(self, message: _Message, buffer: torch.Tensor) -> None:
        """Move an early message into its receiver's memory."""
        early = message.memory
        message.buffer, message.memory = buffer, buffer.numpy().data
        message.memory[: message.message_bytes] = early
        self._early_bytes -= message.message_bytes

    def _check_length(self, key: Key, length: int, buffer: torch.Tensor, exact: bool) -> None:
        due = buffer.numel()
        if length > due or (exact and length != due):
            raise PayloadError(
                f"rank {self._peer} sends {length} bytes for unit {key.unit}, stage {key.stage} "
                f"of step {key.step}, where {'' if exact else 'at most '}{due} are due"
            )

    def _settle_length(self, message: _Message, frame: Frame) -> None:
        """Take the length of a message from a frame, if it is not known; else refuse another."""
        known = message.message_bytes >= 0
        due = message.buffer[: message.message_bytes] if known else message.buffer
        self._check_length(frame.key, frame.message_bytes, due, exact=known)
        message.message_bytes = frame.message_bytes

    def _check_chunk(self, message: _Message, frame: Frame, chunk_bytes: int) -> None:
        offset, length = frame.offset_bytes, frame.data_bytes
        if offset % chunk_bytes or length != min(chunk_bytes, frame.message_bytes - offset):
            raise PayloadError(
                f"rank {self._peer} sends {length} bytes at {offset} of a message of "
                f"{frame.message_bytes}, which is not one chunk of {chunk_bytes}"
            )
        if offset in message.begun:
            raise PayloadError(f"rank {self._peer} sends byte {offset} of a message twice")


def _wrapped(key: Key) -> Key:
    return key._replace(step=key.step & _MOST_STEP)
