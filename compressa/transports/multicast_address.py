"""Where a multicast group meets: drawn by one rank, and told over a channel of the ranks' own."""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Callable
from typing import NamedTuple

from compressa.errors import PeerLost

_SECRET_BYTES = 32
_FIRST_PORT, _PORTS = 49152, 16384


class Address(NamedTuple):
    """Where a group meets.

    Attributes:
        group: An IPv4 address of the networks' own scope, 239.255.0.0/16.
        port: UDP, from 49152 on.
        secret: 32 bytes, known to the ranks alone.
    """

    group: str
    port: int
    secret: bytes

    @classmethod
    def drawn(cls) -> Address:
        """Choose group, port and secret at random."""
        low = secrets.randbelow(1 << 16)
        group = f"239.255.{low >> 8}.{low & 255}"
        return cls(
            group, _FIRST_PORT + secrets.randbelow(_PORTS), secrets.token_bytes(_SECRET_BYTES)
        )

    def message(self) -> bytes:
        """Return it as JSON, for the control channel: whoever reads that may send to the group."""
        return json.dumps([self.group, self.port, self.secret.hex()]).encode()

    @classmethod
    def read(cls, text: bytes, source: int) -> Address:
        """Read and check what `message` of a rank returned.

        Args:
            text: From outside.
            source: The rank.

        Raises:
            PeerLost: It is no address; it names the rank.
        """
        try:
            group, port, secret = json.loads(text)
            address = cls(str(ipaddress.IPv4Address(group)), int(port), bytes.fromhex(secret))
            known = ipaddress.IPv4Address(group).is_multicast and 0 < address.port < 1 << 16
            if not known or len(address.secret) != _SECRET_BYTES:
                raise ValueError(text)
        except (ValueError, TypeError) as error:
            raise PeerLost(source, f"rank {source} sent an address that cannot be read") from error
        return address


def agree_on_address(
    rank: int, source: int, all_gather: Callable[[bytes, str], list[bytes]]
) -> Address:
    """Have the source draw an address and tell all others; collective.

    Args:
        rank: This rank.
        source: Who sends.
        all_gather: Brings bytes, for a purpose, of every rank to every rank, over a channel that
            nobody else reads.

    Raises:
        PeerLost: What the source says can not be read.
    """
    own = Address.drawn().message() if rank == source else b""
    return Address.read(all_gather(own, "multicast address")[source], source)
