"""The header that every unit's compressed payload begins with, version 1, little-endian.

    byte  0  u16  magic 0x7A43 ("Cz")
    byte  2  u8   version
    byte  3  u8   wire id of the codec
    byte  4  u32  epoch of the transport
    byte  8  u32  optimizer step, modulo 2^32
    byte 12  u32  unit
    byte 16  u32  elements that the payload decodes to
    byte 20  u32  bytes of the body that follows

The body is the concatenation of the scopes' payloads, in the order of the layout. A received
header is input from outside: `check_header` compares every field before anything is decoded. Where
a GPU's answers come later, it does so for payloads of bounded size alone; the others have the
length that is due, and are refused when it is known that their headers differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch

from compressa.arrays import as_array
from compressa.errors import ConfigError, PayloadError
from compressa.kernels import cuda
from compressa.kernels.prefix import starts_with, write_prefix

MAGIC = 0x7A43
VERSION = 1
_FORMAT = struct.Struct("<HBBIIIII")
HEADER_BYTES = _FORMAT.size
LENGTH_BYTES = 8
"""Before each scope of varying length: its length (u32), and 4 zero bytes."""
_MOST = 2**32 - 1


@dataclass(frozen=True)
class Header:
    """What a payload says of itself."""

    codec: int
    epoch: int
    step: int
    unit: int
    elems: int
    body_bytes: int

    @cached_property
    def text(self) -> bytes:
        """What it is on the wire."""
        fields = (self.codec, self.epoch, self.step & 0xFFFFFFFF, self.unit)
        return _FORMAT.pack(MAGIC, VERSION, *fields, self.elems, self.body_bytes)


def check_countable(what: str, elems: int, size_bytes: int) -> None:
    """Refuse what the 32 bits of a header, or of a frame, can not count; before the first step.

    Args:
        what: Of what, for the message.
        elems: Number of elements.
        size_bytes: Most bytes of the body.

    Raises:
        ConfigError: They are too many.
    """
    if max(elems, size_bytes) > _MOST:
        raise ConfigError(
            f"{what}: {elems} elements in {size_bytes} bytes are more than a header can count, "
            "2^32 - 1; use a compressor that can cut the parameter (granularity element or block) "
            "and a smaller exchange.unit_bytes"
        )


def aligned(size: int) -> int:
    """Return how many bytes a scope of `size` bytes takes: each begins at a multiple of 8."""
    return -(-size // 8) * 8


def write_header(payload: torch.Tensor, header: Header) -> None:
    """Write a header to the front of a payload; no GPU is waited for.

    Args:
        payload: uint8, at least `HEADER_BYTES` long.
        header: What it says; the step is taken modulo 2^32.
    """
    if payload.is_cuda:
        write_prefix(as_array(payload), header.text)
    else:
        payload.numpy()[:HEADER_BYTES].data[:] = header.text


def read_header(payload: torch.Tensor) -> Header:
    """Read the header of a received payload; what a GPU has is waited for.

    Raises:
        PayloadError: It is too short, or not a payload of this version.
    """
    if payload.numel() < HEADER_BYTES:
        raise PayloadError(
            f"a payload of {payload.numel()} bytes arrived, shorter than its header of "
            f"{HEADER_BYTES} bytes"
        )
    head = payload[:HEADER_BYTES].cpu()  # of a GPU: waits until it has come
    magic, version, *fields = _FORMAT.unpack_from(head.numpy().data, 0)
    if magic != MAGIC:
        raise PayloadError(f"a payload begins with {magic:#06x} instead of {MAGIC:#06x}")
    if version != VERSION:
        raise PayloadError(
            f"a payload of format version {version} arrived, this library reads version "
            f"{VERSION}: install the same version of compressa on every rank"
        )
    return Header(*fields)


def check_header(payload: torch.Tensor, expected: Header, sender: int, exact: bool) -> int:
    """Check a received payload's header against what its receiver waits for.

    A GPU is waited for, unless the length is exact and answers come later.

    Args:
        payload: uint8, header and body.
        expected: The header that the sender should have written.
        sender: Rank that sent it, for the message.
        exact: Whether the body has exactly `expected.body_bytes` (else at most that many).

    Returns:
        Bytes of the body.

    Raises:
        PayloadError: A field differs.
    """
    arrived = payload.numel() - HEADER_BYTES
    if payload.is_cuda:
        if exact and cuda.answers_come_later():
            return _check_later(payload, expected, sender)
    else:  # as a whole: whoever finds a difference looks at the fields
        shorter = not exact and 0 <= arrived < expected.body_bytes
        whole = replace(expected, body_bytes=arrived) if shorter else expected
        if arrived == whole.body_bytes and payload.numpy().data[:HEADER_BYTES] == whole.text:
            return arrived
    header = read_header(payload)
    due = replace(expected, step=expected.step & 0xFFFFFFFF, body_bytes=header.body_bytes)
    if header != due:
        names = (field.name for field in fields(Header))
        name = next(name for name in names if getattr(header, name) != getattr(due, name))
        raise PayloadError(
            f"the payload from rank {sender} has {name} {getattr(header, name)} where "
            f"{getattr(due, name)} is due"
        )
    length = header.body_bytes
    most = expected.body_bytes
    if length > most or (exact and length != most) or arrived != length:
        raise PayloadError(
            f"the payload from rank {sender} says it has a body of {length} bytes; {arrived} "
            f"arrived, and {'exactly' if exact else 'at most'} {most} are due"
        )
    return length


def _check_later(payload: torch.Tensor, expected: Header, sender: int) -> int:
    """Check the length now, and have the GPU look at the header."""
    arrived, due = payload.numel(), HEADER_BYTES + expected.body_bytes
    # With a length that is right, it is the answer that tells of a header that is not.
    if arrived != due or not starts_with(as_array(payload), expected.text):
        raise PayloadError(
            f"the payload from rank {sender} has {arrived} bytes where exactly {due} are due"
        )
    return expected.body_bytes
