"""Frames: how messages travel between a pair of ranks, version 2, little-endian.

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
    byte 32  u64  check of the data: its checksum (`compressa.kernels.checksums`), or, where frames
                  are authenticated, a MAC of bytes 0 to 31 and the data (`checks`)
    byte 40  u64  checksum of bytes 0 to 39

A message is cut into frames of at most a chunk each, so that an urgent one can overtake.
Every field that is received is checked before memory is written, and the data before its message
is handed on. What a network's own checks let pass is found out here: a change within eight bytes
always, any other with a probability of 1 - 2^-64.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compressa.errors import PayloadError
from compressa.kernels.checksums import checksum_of_memory
from compressa.kernels.compiled import compile_once
from compressa.transports.base import Key
from compressa.transports.checks import CHECKSUM, Check

MAGIC = 0x7A66
VERSION = 2
_FORMAT = struct.Struct("<HBBIIIHHIII")
_CHECK, _CHECKS = struct.Struct("<Q"), struct.Struct("<QQ")
_CHECKED_BYTES = _FORMAT.size + _CHECK.size
FRAME_HEADER_BYTES = _CHECKED_BYTES + _CHECK.size

_NOWHERE = Key(0, 0, 0)
NO_DATA = memoryview(b"")


class Kind(IntEnum):
    """What a frame is for: data of a message, a sign of life, or the end of a stream in order."""

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
        check: Of the data, as it was read; not known before.
    """

    kind: Kind
    epoch: int
    key: Key = _NOWHERE
    message_bytes: int = 0
    offset_bytes: int = 0
    data_bytes: int = 0
    check: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether more of its message comes behind it."""
        return self.offset_bytes + self.data_bytes < self.message_bytes

    def pack(self, data: memoryview = NO_DATA, check: Check = CHECKSUM) -> bytearray:
        """Return the header's `FRAME_HEADER_BYTES` bytes.

        Args:
            data: `data_bytes` bytes that follow it; the header holds their check.
            check: Of the stream that it leaves in, which counts the frame.
        """
        header = bytearray(FRAME_HEADER_BYTES)
        memory = memoryview(header)
        header[: _FORMAT.size] = self._front()
        front = memory[: _FORMAT.size]
        own = checksum_of_memory(data) if check is CHECKSUM else check.of(front, data)
        _CHECK.pack_into(header, _FORMAT.size, own)
        whole = checksum_of_memory(memory[:_CHECKED_BYTES])
        _CHECK.pack_into(header, _CHECKED_BYTES, whole)
        return header

    def write(
        self,
        buffer: npt.NDArray[np.uint8],
        data: memoryview = NO_DATA,
        check: Check = CHECKSUM,
    ) -> None:
        """Write what `pack` returns to the front of a buffer.

        Args:
            buffer: uint8, contiguous, of at least `FRAME_HEADER_BYTES` bytes.
            data: As in `pack`.
            check: As in `pack`.
        """
        buffer.data[:FRAME_HEADER_BYTES] = self.pack(data, check)

    def verify(self, data: memoryview, way: str, check: Check = CHECKSUM) -> None:
        """Check that all data of a frame that was read is what was sent.

        Args:
            data: `data_bytes` bytes.
            way: From whom to whom and over what they came, for messages.
            check: Of the stream that it came in.

        Raises:
            PayloadError: It is not.
        """
        if check is CHECKSUM:
            own = checksum_of_memory(data)
        else:
            own = check.of(memoryview(self._front()), data)
        if own != self.check:
            step, unit, stage, _ = self.key
            raise _refused(way, f"for unit {unit}, stage {stage} of step {step} {check.wrong}")

    def _front(self) -> bytes:
        """Return what comes before the checks."""
        step, unit, stage, part = self.key
        name = (step & 0xFFFFFFFF, unit, stage, part)
        sizes = (self.message_bytes, self.offset_bytes, self.data_bytes)
        return _FORMAT.pack(MAGIC, VERSION, self.kind, self.epoch, *name, *sizes)


def read_frame(buffer: memoryview, epoch: int, most_data_bytes: int, way: str) -> Frame:
    """Read and check the header at the front of `buffer`.

    Args:
        buffer: At least `FRAME_HEADER_BYTES` bytes.
        epoch: The epoch that it must have.
        most_data_bytes: Most bytes of data that a frame may carry.
        way: From whom to whom and over what it came, for messages.

    Raises:
        PayloadError: It is not a frame of this version and epoch, is not what was sent, or its
            sizes contradict each other.
    """
    fields = _FORMAT.unpack_from(buffer)
    magic, version, number, got_epoch, step, unit, stage, part, total, offset, length = fields
    check, whole = _CHECKS.unpack_from(buffer, _FORMAT.size)
    kind = _KINDS.get(number)
    if magic != MAGIC or version != VERSION:
        raise _refused(way, f"has magic {magic:#06x} and version {version}")
    if checksum_of_memory(buffer[:_CHECKED_BYTES]) != whole:
        raise _refused(way, CHECKSUM.wrong)
    if got_epoch != epoch:
        raise _refused(way, f"is of epoch {got_epoch}, this is epoch {epoch}")
    if kind is None:
        raise _refused(way, f"is of unknown kind {number}")
    if length > most_data_bytes or offset + length > total or (length and kind is not Kind.DATA):
        raise _refused(way, f"has {length} bytes at {offset} of a message of {total}")
    return Frame(kind, epoch, Key(step, unit, stage, part), total, offset, length, check)


def way(sender: int, receiver: int, transport: str) -> str:
    """Name a link in one direction, for messages of errors: "from rank 1 to rank 0 over tcp"."""
    return f"from rank {sender} to rank {receiver} over {transport}"


def prepare() -> None:
    """Load what checks frames, on one thread: many that import at once can find half a module.

    Waits for as long as compiling the checksum takes, where it is not on disk yet.
    """
    work = partial(checksum_of_memory, memoryview(bytearray(1)))
    compile_once("checksums", work, lock="checksums")


def _refused(way: str, why: str) -> PayloadError:
    return PayloadError(f"a frame {way} {why}")
