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

    def write(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Write the header to the front of `buffer`."""
        key = self.key
        sizes = (self.message_bytes, self.offset_bytes, self.data_bytes)
        head = (MAGIC, VERSION, self.kind, self.epoch)
        name = (key.step & 0xFFFFFFFF, key.unit, key.stage, key.part)
        _FORMAT.pack_into(buffer.data, 0, *head, *name, *sizes)


def read_frame(
    buffer: npt.NDArray[np.uint8], epoch: int, most_data_bytes: int, sender: int
) -> Frame:
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
    fields = _FORMAT.unpack_from(buffer.data, 0)
    magic, version, kind, got_epoch, step, unit, stage, part = fields[:8]
    message_bytes, offset_bytes, data_bytes = fields[8:]
    source = f"a frame from rank {sender}"
    if magic != MAGIC or version != VERSION:
        raise PayloadError(f"{source} has magic {magic:#06x} and version {version}")
    if got_epoch != epoch:
        raise PayloadError(f"{source} is of epoch {got_epoch}, this is epoch {epoch}")
    if kind not in Kind.__members__.values():
        raise PayloadError(f"{source} is of unknown kind {kind}")
    if data_bytes > most_data_bytes or offset_bytes + data_bytes > message_bytes:
        raise PayloadError(
            f"{source} has {data_bytes} bytes at {offset_bytes} of a message of {message_bytes}"
        )
    return Frame(
        Kind(kind), got_epoch, Key(step, unit, stage, part), message_bytes, offset_bytes, data_bytes
    )
