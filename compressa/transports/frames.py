"""Frames: how messages travel on a byte-preserving pair of ranks, version 1, little-endian.

    byte  0  u16  magic 0x7A66 ("fz")
    byte  2  u8   version
    byte  3  u8   kind: 0 data, 1 idle, 2 goodbye
    byte  4  u32  epoch
    byte  8  u32  step, modulo 2^32
    byte 12  u32  unit
    byte 16  u16  stage
    byte 18  u16  part of the stage
    byte 20  u32  bytes of the whole message
    byte 24  u32  offset of this frame's data in the message
    byte 28  u32  bytes of data in this frame

A message is cut into frames of at most a chunk each, so that an urgent one can overtake.
Every field that is received is checked before memory is written.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compressa.errors import PayloadError
from compressa.transports.base import Key

MAGIC = 0x7A66
VERSION = 1
_FORMAT = struct.Struct("<HBBIIIHHIII")
FRAME_HEADER_BYTES = _FORMAT.size

_NOWHERE = Key(0, 0, 0)


class Kind(IntEnum):
    """What a frame is for."""

    DATA = 0
    IDLE = 1
    GOODBYE = 2


_KINDS = {kind.value: kind for kind in Kind}


class Frame(NamedTuple):
    """One frame's header.

    Attributes:
        kind: What it is for.
        epoch: Epoch of the sending transport.
        key: Message that it belongs to.
        message_bytes: Length of the whole message.
        offset_bytes: Where this frame's data goes.
        data_bytes: Length of this frame's data.
    """

    kind: Kind
    epoch: int
    key: Key = _NOWHERE
    message_bytes: int = 0
    offset_bytes: int = 0
    data_bytes: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether more of its message comes behind it."""
        return self.offset_bytes + self.data_bytes < self.message_bytes

    def pack(self) -> bytes:
        """Return the header's bytes."""
        step, unit, stage, part = self.key
        name = (step & 0xFFFFFFFF, unit, stage, part)
        sizes = (self.message_bytes, self.offset_bytes, self.data_bytes)
        return _FORMAT.pack(MAGIC, VERSION, self.kind, self.epoch, *name, *sizes)

    def write(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Write the header to the front of `buffer`."""
        buffer.data[:FRAME_HEADER_BYTES] = self.pack()


def read_frame(buffer: memoryview, epoch: int, most_data_bytes: int, sender: int) -> Frame:
    """Read and check the header at the front of `buffer`.

    Args:
        buffer: At least `FRAME_HEADER_BYTES` bytes.
        epoch: The epoch that it must have.
        most_data_bytes: Most bytes of data that a frame may carry.
        sender: Rank that sent it, for messages.

    Raises:
        PayloadError: It is not a frame of this version and epoch, or its sizes contradict
            each other.
    """
    fields = _FORMAT.unpack_from(buffer)
    magic, version, number, got_epoch, step, unit, stage, part, total, offset, length = fields
    kind = _KINDS.get(number)
    if magic != MAGIC or version != VERSION:
        raise _refused(sender, f"has magic {magic:#06x} and version {version}")
    if got_epoch != epoch:
        raise _refused(sender, f"is of epoch {got_epoch}, this is epoch {epoch}")
    if kind is None:
        raise _refused(sender, f"is of unknown kind {number}")
    if length > most_data_bytes or offset + length > total:
        raise _refused(sender, f"has {length} bytes at {offset} of a message of {total}")
    return Frame(kind, epoch, Key(step, unit, stage, part), total, offset, length)


def _refused(sender: int, why: str) -> PayloadError:
    return PayloadError(f"a frame from rank {sender} {why}")
