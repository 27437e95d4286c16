"""Multicast broadcast: the source sends datagrams that the network copies to all receivers.

One port's time, m b and what the packets cost, whatever P; but datagrams may be lost. So the
bytes go in bursts. After each burst the source says so in a message that can not be lost, and every
receiver answers with a bit for each packet that it still lacks. What anybody lacks goes into the
next burst, until nobody lacks anything. Two programs side by side, with bytes of their own, keep
the wire busy: one sends while the other asks.

The first burst is short: where multicast does not get through at all, that is found out by it. A
receiver that has heard nothing of several bursts in a row is deaf, and the source gives up.

Messages are little-endian. Of the receivers: a byte, when they are ready; then, after each burst, a
bit for each packet, bit i % 8 of byte i // 8, set where the packet is missing. Of the source, after
each burst: how many packets it had, as u32, 0 when all is done; and a bit for each rank, set where
it is deaf, which ends it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from compressa.collectives.base import Compute, Exchange, Program
from compressa.collectives.passing import pass_hop
from compressa.errors import PayloadError, TransportError

FIRST_BURST = 32
"""Packets."""

DEAF_AFTER = 10
"""Bursts; the last may be of one packet, of which one after the other is lost by chance."""

_COUNT = np.dtype("<u4")

Bits = npt.NDArray[np.bool_]


class Sender(ABC):
    """Sends packets to all other ranks at once; they may be lost."""

    @abstractmethod
    def packets(self, size_bytes: int) -> int:
        """Return how many packets so many bytes are cut into."""

    @abstractmethod
    def send(self, bucket: int, data: torch.Tensor, numbers: Sequence[int]) -> int:
        """Send some packets, for as long as a burst may take; blocks.

        Args:
            bucket: Tells these bytes from others.
            data: 1-D uint8, contiguous, on the CPU: all of them.
            numbers: Which packets of theirs, in the order in which they leave; at least one.

        Returns:
            How many of `numbers` were sent, from the first; at least one.

        Raises:
            TransportError: Packets can not be sent any more.
        """

    @abstractmethod
    def lost(self, share: float, packets: int) -> None:
        """Learn how much of a burst did not reach the receiver that lacks most.

        Args:
            share: From 0 to 1.
            packets: Of the burst.
        """

    @property
    @abstractmethod
    def trouble(self) -> str:
        """What is wrong where nothing gets through, and what to do about it."""


class Receiver(ABC):
    """Takes packets as they come."""

    @abstractmethod
    def expect(self, bucket: int, data: torch.Tensor) -> None:
        """Have what comes of a bucket written to memory from now on, until `forget`.

        Args:
            bucket: Tells these bytes from others.
            data: 1-D uint8, contiguous, on the CPU, as long as the sender's.
        """

    @abstractmethod
    def missing(self, bucket: int) -> Bits:
        """Take what has come by now; return bool[packets], True where a packet has not."""

    @abstractmethod
    def forget(self, bucket: int) -> None:
        """Write to the memory of a bucket no more, if it was expected."""

    @property
    @abstractmethod
    def trouble(self) -> str:
        """As the sender's."""


def send(
    data: torch.Tensor, bucket: int, size: int, receivers: Sequence[int], sender: Sender
) -> Program[None]:
    """Bring bytes to others.

    Args:
        data: 1-D uint8, contiguous, on the CPU.
        bucket: Tells these bytes from others.
        size: Number of ranks.
        receivers: Who asks for them.
        sender: Sends the packets.

    Raises:
        TransportError: Somebody hears nothing, or `sender` fails.
        PayloadError: Somebody asks for what there is not.
    """
    yield Exchange({}, {rank: torch.empty(1, dtype=torch.uint8) for rank in receivers})
    count = sender.packets(data.numel())
    due, silences = np.arange(count), Counter[int]()
    burst_packets = FIRST_BURST
    while due.size:
        burst = due[:burst_packets]
        sent = yield Compute(partial(sender.send, bucket, data, burst.tolist()), "encode")
        burst = burst[:sent]
        yield from _tell(burst.size, [], size, receivers)
        missing = yield from _ask(count, receivers)
        silent = [rank for rank, bits in missing.items() if bits[burst].all()]
        silences = Counter({rank: silences[rank] + 1 for rank in silent})
        deaf = [rank for rank in silent if silences[rank] >= DEAF_AFTER]
        if deaf:
            yield from _tell(0, deaf, size, receivers)
            raise _deafness(deaf, sender.trouble)
        if not silent:
            burst_packets = count
        share = max(float(bits[burst].mean()) for bits in missing.values())
        sender.lost(share, burst.size)
        due = np.flatnonzero(np.logical_or.reduce(list(missing.values())))
    yield from _tell(0, [], size, receivers)


def receive(
    data: torch.Tensor, bucket: int, size: int, source: int, receiver: Receiver
) -> Program[None]:
    """Hear bytes that another rank sends; see `send`.

    Args:
        data: 1-D uint8, contiguous, on the CPU, as long as the source's; overwritten.
        bucket: As the source's.
        size: Number of ranks.
        source: The rank that sends.
        receiver: Takes the packets.

    Raises:
        TransportError: Somebody hears nothing.
        PayloadError: The source says that it is done, and packets are missing.
    """
    receiver.expect(bucket, data)
    try:
        yield from pass_hop({source: torch.zeros(1, dtype=torch.uint8)}, {})
        while (yield from _hear(source, size, receiver)):
            report = np.packbits(receiver.missing(bucket), bitorder="little")
            yield from pass_hop({source: torch.from_numpy(report)}, {})
        if receiver.missing(bucket).any():
            raise PayloadError(f"rank {source} ends a multicast that has not come as a whole")
    finally:
        receiver.forget(bucket)


def _tell(packets: int, deaf: Sequence[int], size: int, receivers: Sequence[int]) -> Program[None]:
    bits = np.isin(np.arange(size), deaf)
    head = np.array([packets], _COUNT).view(np.uint8)
    notice = torch.from_numpy(np.concatenate([head, np.packbits(bits, bitorder="little")]))
    yield from pass_hop(dict.fromkeys(receivers, notice), {})


def _hear(source: int, size: int, receiver: Receiver) -> Program[bool]:
    """Whether there was a burst, and not the end."""
    notice = torch.empty(_COUNT.itemsize + math.ceil(size / 8), dtype=torch.uint8)
    yield from pass_hop({}, {source: notice})
    head, bits = np.split(notice.numpy(), [_COUNT.itemsize])
    deaf = np.flatnonzero(np.unpackbits(bits, count=size, bitorder="little"))
    if deaf.size:
        raise _deafness(deaf.tolist(), receiver.trouble)
    return bool(head.view(_COUNT)[0])


def _ask(count: int, receivers: Sequence[int]) -> Program[Mapping[int, Bits]]:
    """Hear which packets each receiver lacks."""
    reports = {rank: torch.empty(math.ceil(count / 8), dtype=torch.uint8) for rank in receivers}
    yield Exchange({}, reports)
    missing = {}
    for rank, report in reports.items():
        bits = np.unpackbits(report.numpy(), bitorder="little").astype(bool)
        if bits[count:].any():
            raise PayloadError(f"rank {rank} asks for packets beyond the last of {count}")
        missing[rank] = bits[:count]
    return missing


def _deafness(deaf: Sequence[int], trouble: str) -> TransportError:
    who = ("rank " if len(deaf) == 1 else "ranks ") + ", ".join(map(str, deaf))
    return TransportError(f"{who} heard nothing of {DEAF_AFTER} bursts of multicast: {trouble}")
