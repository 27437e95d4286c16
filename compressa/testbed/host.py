"""What is known of one host: where it is, and what its interface has carried."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One host of a testbed.

    Attributes:
        name: Its name; on a netns testbed also its hostname when a process runs isolated.
        address: Its IPv4 address, as the other hosts reach it.
        interface: The network interface that has the address.
    """

    name: str
    address: str
    interface: str


@dataclass(frozen=True)
class Counters:
    """What one host's interface has carried, as the kernel counts it.

    Bytes include Ethernet, IP and TCP headers and acknowledgements, but a packet that segmentation
    offload has merged counts its headers once: 1 MB of payload reads about 0.5 % more. Subtract an
    earlier reading to get the traffic in between.

    Attributes:
        tx_bytes: Bytes sent.
        rx_bytes: Bytes received.
        tx_packets: Packets sent.
        rx_packets: Packets received.
    """

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __sub__(self, earlier: Counters) -> Counters:
        """Traffic since `earlier`."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return Counters(*(now - then for now, then in pairs))
