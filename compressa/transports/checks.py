"""Checks: what tells a receiver that a frame's data is what was sent.

Without a secret a checksum, against chance. With one a MAC, against intent: the first 64 bits of
HMAC-SHA256 over the number of the frame in its stream (u64), bytes 0 to 31 of its header, and its
data. Each stream, which is one direction of one connection, has a key of its own. So a frame is
taken once, in its place, from its sender. One wrong MAC ends the transport: who guesses has a
chance of 2^-64.
"""

from __future__ import annotations

import hmac
import struct
from typing import ClassVar, NamedTuple, Protocol

from compressa.kernels.checksums import checksum_of_memory

_STREAM = struct.Struct("<III")
_NUMBER = struct.Struct("<Q")


class Check(Protocol):
    """One end of a stream.

    Attributes:
        wrong: What is said of data that does not pass.
    """

    wrong: ClassVar[str]

    def of(self, front: memoryview, data: memoryview) -> int:
        """Return the 64 bits that check the next frame; each call counts as one frame.

        Args:
            front: Bytes 0 to 31 of its header: kind, epoch, name and sizes.
            data: What it carries; may be empty.
        """

    def take_back(self, frames: int) -> None:
        """Have so many of the last frames not counted: the kernel has taken none of their bytes."""


class Checksum:
    """The checksum of the data, which needs no key and keeps no count."""

    wrong: ClassVar[str] = (
        "is not what was sent: its checksum is wrong; the memory of a host, a network card or a "
        "device between them changes bits"
    )

    def of(self, front: memoryview, data: memoryview) -> int:
        """See `Check.of`; of the data alone, since the header has a checksum of its own."""
        return checksum_of_memory(data)

    def take_back(self, frames: int) -> None:
        """Do nothing: no count is kept."""


class Mac:
    """A MAC of the header and the data, and of how many frames came before.

    For one end of one stream, and one thread.

    Args:
        key: Of one stream; 32 bytes.
    """

    wrong: ClassVar[str] = (
        "is not authentic: it was forged, changed, repeated, or one before it is missing; or the "
        "ranks have different secrets"
    )

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._number = 0

    def of(self, front: memoryview, data: memoryview) -> int:
        """See `Check.of`: the first 64 bits of HMAC-SHA256 over the frame's number, front, data."""
        mac = self._keyed.copy()
        mac.update(_NUMBER.pack(self._number) + front)
        mac.update(data)
        self._number += 1
        return int(_NUMBER.unpack_from(mac.digest())[0])

    def take_back(self, frames: int) -> None:
        """Number the next frames as if so many had not been."""
        self._number -= frames


class Keys(NamedTuple):
    """What a rank makes the checks of its streams from.

    Attributes:
        rank: This rank.
        secret: Known to the ranks alone, and never used twice; None for checksums.
    """

    rank: int = 0
    secret: bytes | None = None

    def named(self, purpose: str) -> Keys:
        """Return keys for one purpose, derived by HMAC: frames of another purpose do not pass.

        Without a secret these are the same checksums.

        Args:
            purpose: Any text; the same on every rank.
        """
        if self.secret is None:
            return self
        return Keys(self.rank, hmac.digest(self.secret, purpose.encode(), "sha256"))

    def to(self, peer: int, number: int = 0) -> Check:
        """Return the check of what this rank sends to a peer; with a secret, a new one.

        Args:
            peer: Who receives it, and makes the same check by `coming_from`.
            number: Which of the connections between the two carries it.
        """
        return self._stream(self.rank, peer, number)

    def coming_from(self, peer: int, number: int = 0) -> Check:
        """Return the check of what this rank receives from a peer; see `to`."""
        return self._stream(peer, self.rank, number)

    def of_streams(self, peer: int, number: int) -> tuple[bytes, bytes]:
        """Return the keys of what this rank sends to a peer, and of what it receives from it.

        Only with a secret; arguments as for `to`.
        """
        return self._key(self.rank, peer, number), self._key(peer, self.rank, number)

    def _stream(self, sender: int, receiver: int, number: int) -> Check:
        return CHECKSUM if self.secret is None else Mac(self._key(sender, receiver, number))

    def _key(self, sender: int, receiver: int, number: int) -> bytes:
        assert self.secret is not None, "checksums have no key"
        return hmac.digest(self.secret, _STREAM.pack(sender, receiver, number), "sha256")


CHECKSUM = Checksum()
CHECKSUMS = Keys()
"""The keys of those who have no secret."""
