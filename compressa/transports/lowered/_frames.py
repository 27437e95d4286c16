"""Frames in compiled code: the header's six words, written and checked; see `transports.frames`."""

from __future__ import annotations

import numpy as np

from compressa.kernels.cpu._jit import lean_nested
from compressa.kernels.cpu.checksums import checksum_of

from ._macs import check_of
from ._memory import peek, poke, u8_at

MAGIC, VERSION = 0x7A66, 2
_FRONT = MAGIC | VERSION << 16
_FRONT_MASK, _KIND_MASK, _LOW, _HIGH = 0xFFFFFF, 0xFF, 0xFFFFFFFF, 32
_CHECKED_BYTES = 40


@lean_nested
def write_header(
    header: int,
    epoch: int,
    name_a: int,
    name_b: int,
    total: int,
    offset: int,
    data: int,
    count: int,
    mac: int,
) -> None:
    """Write a frame's header.

    Args:
        header: Where its six words go.
        epoch: The transport's.
        name_a: Step and unit; see `name_of`.
        name_b: Stage and part.
        total: Bytes of the message.
        offset: Of the data in it.
        data: Where the data is.
        count: How many bytes.
        mac: Of the stream; 0 for a checksum.
    """
    poke(header, 0, _FRONT | (epoch << _HIGH))
    poke(header, 1, name_a)
    poke(header, 2, name_b | (total << _HIGH))
    poke(header, 3, offset | (count << _HIGH))
    poke(header, 4, check_of(mac, header, data, count))
    poke(header, 5, np.int64(checksum_of(u8_at(header, _CHECKED_BYTES))))


@lean_nested
def is_frame(header: int) -> bool:
    """Whether a header is of this version, and bears data."""
    return peek(header, 0) & _LOW == _FRONT


@lean_nested
def is_whole(header: int) -> bool:
    """Whether a header is what was sent."""
    own = np.int64(checksum_of(u8_at(header, _CHECKED_BYTES)))
    return bool(own == peek(header, 5))


@lean_nested
def low(word: int) -> int:
    """Return the lower half of a word, unsigned."""
    return word & _LOW


@lean_nested
def high(word: int) -> int:
    """Return the upper half of a word, unsigned."""
    return (word >> _HIGH) & _LOW
