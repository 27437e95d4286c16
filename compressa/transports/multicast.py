"""Multicast: datagrams from one rank to a group of the network's, which copies them to all others.

Version 1, little-endian, one UDP datagram each:

    byte  0  u16  magic 0x636D ("mc")
    byte  2  u8   version
    byte  3  u8   zero
    byte  4  u32  epoch
    byte  8  u32  bucket
    byte 12  u32  number of the packet in its bucket
    byte 16  u32  bytes of data
    byte 20  data
    then 16 bytes of HMAC-SHA256 over all that, with a secret that the ranks share

Packet i has the bytes from i PACKET_BYTES on; it is larger than most networks' frames, so that a
packet costs little, and the network layer cuts it. Anybody can send to a group, so all of it is
checked before a byte is written, and what does not fit is dropped and counted.

The sender's own link holds it back, since few of its packets fit into the socket. Where packets
are lost nevertheless, some receiver or link is slower: then it sends no faster than what came
through, and tries a little more with each burst.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch

from compressa.collectives.broadcast_multicast import Bits, Receiver, Sender
from compressa.errors import TransportError
from compressa.pacing import Pacer
from compressa.transports import forks
from compressa.transports.multicast_address import Address
from compressa.transports.reactor import READ, Reactor
from compressa.transports.rendezvous import local_address

PACKET_BYTES = 8192
TTL = 1
"""Packets stay within the local network."""

_MAGIC, _VERSION = 0x636D, 1
_HEADER = struct.Struct("<HBBIIII")
_PROOF_BYTES = 16
_SEND_BUFFER_BYTES = 128 << 10  # less than the queue of a link, which drops what it has no room for
_RECEIVE_BUFFER_BYTES = 8 << 20
_RECEIVE_BUFFER_FORCE = 33  # Linux's SO_RCVBUFFORCE, which Python does not name
_MULTICAST_ALL = 49  # Linux's IP_MULTICAST_ALL
_READ_PACKETS = 64  # at a time; then the other sockets are read from
_MOST_DRAINED = 1 << 16
_MOST_PACKET_BYTES = 1 << 16
_LOSS = 0.02  # a share that a burst may lose and the next one go as fast
_MORE = 1.25  # so that up to a fifth may be lost by chance, and the rate does not fall
_STEP_S = 1e-3
_TRY_S = 0.5
_PAUSE_S, _MOST_DOUBLINGS = 0.05, 4  # until a network has noted who wants to hear a group
_TELLING_PACKETS = 64  # whose losses say something about the rate


@final
class MulticastSender(Sender):
    """The rank that sends to a group.

    Args:
        address: Of the group.
        epoch: The same on every rank.
        limit_bits_per_s: What may be sent at most; None for what the link takes.
        burst_s: Longest burst, in seconds.

    Attributes:
        sent: Packets sent so far, those that were sent again included.

    Raises:
        TransportError: The interface has no multicast; the message names the fix.
    """

    def __init__(
        self, address: Address, epoch: int, limit_bits_per_s: float | None, burst_s: float
    ) -> None:
        self.sent = 0
        self._address = address
        self._epoch = epoch
        self._limit_bits_per_s = limit_bits_per_s
        self._pacer = Pacer(limit_bits_per_s)
        self._burst_s = burst_s
        self._unpaced_bytes = 0
        self._burst_bits_per_s = 0.0
        self._pause_s = 0.0
        self._silences = 0
        self._packet = bytearray(_HEADER.size + PACKET_BYTES + _PROOF_BYTES)
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self._here = local_address()
        self._socket = _opened(self._here, self._set_up)

    def _set_up(self, link: socket.socket, interface: bytes) -> None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        link.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        link.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, TTL)
        link.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)  # ranks on one host
        link.settimeout(_TRY_S)

    def close(self) -> None:
        """End a burst that is under way, whose `send` raises, and close the socket.

        From any thread. Waits for that burst, which notices within half a second.
        """
        self._stopped.set()
        with self._sending:
            self._socket.close()

    @property
    def trouble(self) -> str:
        """What may be wrong where no packet gets through, and what to do, for an error."""
        return _trouble(self._address, self._here)

    def packets(self, size_bytes: int) -> int:
        """Return how many packets so many bytes are cut into: `PACKET_BYTES` in each, or less."""
        return math.ceil(size_bytes / PACKET_BYTES)

    def send(self, bucket: int, data: torch.Tensor, numbers: Sequence[int]) -> int:
        """Send some packets, for no longer than a burst; blocks. Threads wait for each other.

        Args:
            bucket: Number of the bucket, below 2^32.
            data: uint8, contiguous, on the CPU: all of the bucket.
            numbers: Of the packets to send, in this order.

        Returns:
            How many of them were sent before the burst was over, at least one.

        Raises:
            TransportError: The interface does not take them, or this is closed.
        """
        with self._sending:
            return self._send_burst(bucket, data, numbers)

    def _send_burst(self, bucket: int, data: torch.Tensor, numbers: Sequence[int]) -> int:
        self._stopped.wait(min(self._pause_s, self._burst_s))
        memory = data.numpy().data
        begin_s, size_bytes, count = time.monotonic(), 0, 0
        for number in numbers:
            count += 1
            part = memory[number * PACKET_BYTES : (number + 1) * PACKET_BYTES]
            size_bytes += self._send(bucket, number, part)
            if time.monotonic() - begin_s > self._burst_s:
                break
        if count >= _TELLING_PACKETS:
            self._burst_bits_per_s = 8 * size_bytes / max(time.monotonic() - begin_s, 1e-6)
        self.sent += count
        return count

    def _send(self, bucket: int, number: int, part: memoryview) -> int:
        packet, end = memoryview(self._packet), _HEADER.size + len(part)
        _HEADER.pack_into(packet, 0, _MAGIC, _VERSION, 0, self._epoch, bucket, number, len(part))
        packet[_HEADER.size : end] = part
        packet[end : end + _PROOF_BYTES] = _proof(self._address, packet[:end])
        size = end + _PROOF_BYTES
        self._pace(size)
        self._deliver(packet[:size])
        return size

    def _deliver(self, packet: memoryview) -> None:
        """Wait until the link has room, and no longer than a burst may take."""
        end_s = time.monotonic() + self._burst_s
        while not self._stopped.is_set() and time.monotonic() < end_s:
            try:
                self._socket.sendto(packet, self._address[:2])
            except TimeoutError:
                continue
            except OSError as error:
                raise _unavailable(self._here, error) from error
            return
        raise TransportError(f"the link of {self._here} takes no multicast any more, or it is over")

    def _pace(self, size: int) -> None:
        """Wait in steps that are long beside what waiting itself takes."""
        rate = self._pacer.rate_bits_per_s
        self._unpaced_bytes += size
        if rate is not None and 8 * self._unpaced_bytes / rate > _STEP_S:
            self._pacer.wait(self._unpaced_bytes)
            self._unpaced_bytes = 0

    def lost(self, share: float, packets: int) -> None:
        """Go on a little faster than what came through, once much was lost.

        What became of a few packets is chance. Only where none came, and none came before either,
        does the next burst wait.

        Args:
            share: Of the last burst's packets, what the worst receiver lacks, from 0 to 1.
            packets: How many the burst had; below 64 they say nothing of the rate.
        """
        self._silences = self._silences + 1 if share == 1 else 0
        late = min(self._silences - 2, _MOST_DOUBLINGS)
        self._pause_s = _PAUSE_S * (1 << late) if late >= 0 else 0.0
        paced = self._pacer.rate_bits_per_s
        if packets < _TELLING_PACKETS or share == 1:
            return
        if share > _LOSS:
            rate = self._burst_bits_per_s * (1 - share) * _MORE
        elif paced is not None:
            rate = paced * _MORE
        else:
            return
        limit = self._limit_bits_per_s
        self._pacer = Pacer(rate if limit is None else min(rate, limit))


class _Bucket:
    """Memory that packets are written to, and which have not come."""

    def __init__(self, data: torch.Tensor) -> None:
        self.memory = data.numpy().data
        self.missing: Bits = np.ones(math.ceil(data.numel() / PACKET_BYTES), np.bool_)

    def room(self, number: int) -> memoryview:
        return self.memory[number * PACKET_BYTES : (number + 1) * PACKET_BYTES]


@final
class MulticastReceiver(Receiver):
    """A rank that hears a group. All calls are for the reactor's thread.

    Args:
        address: Of the group.
        epoch: The same on every rank; packets of another are refused.

    Attributes:
        refused: Packets that did not fit, by what was wrong with them: "stranger", "stale" of a
            bucket that is not expected, "twice" of what had come already.

    Raises:
        TransportError: The interface has no multicast; the message names the fix.
    """

    def __init__(self, address: Address, epoch: int) -> None:
        self.refused: Counter[str] = Counter()
        self._address = address
        self._epoch = epoch
        self._buckets: dict[int, _Bucket] = {}
        self._staging = memoryview(bytearray(_MOST_PACKET_BYTES))
        self._here = local_address()
        self._socket = _opened(self._here, self._set_up)

    def _set_up(self, link: socket.socket, interface: bytes) -> None:
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _widen(link)
        link.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
        member = socket.inet_aton(self._address.group) + interface
        link.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        link.bind(self._address[:2])

    def attach(self, reactor: Reactor) -> None:
        """Have a reactor read what comes, at most 64 packets at a time."""
        reactor.watch(self._socket, READ, lambda events: self._read(_READ_PACKETS))

    def detach(self, reactor: Reactor) -> None:
        """Leave the group, and close the socket."""
        reactor.watch(self._socket, 0, lambda events: None)
        self._socket.close()

    @property
    def trouble(self) -> str:
        """What may be wrong where no packet gets through, and what to do, for an error."""
        return _trouble(self._address, self._here)

    def expect(self, bucket: int, data: torch.Tensor) -> None:
        """Have what comes of a bucket written to memory from now on, until `forget`.

        Args:
            bucket: Its number.
            data: uint8, contiguous, on the CPU; as long as the bucket.
        """
        self._buckets[bucket] = _Bucket(data)

    def missing(self, bucket: int) -> Bits:
        """Take what has come by now; return which packets of an expected bucket have not.

        Returns:
            By packet, True if it is missing; the receiver's own array, which changes as they come.
        """
        self._read(_MOST_DRAINED)
        return self._buckets[bucket].missing

    def forget(self, bucket: int) -> None:
        """Write to a bucket's memory no more; its packets count as "stale" from now on."""
        self._buckets.pop(bucket, None)

    def _read(self, most: int) -> None:
        """Take what there is, at most so many packets."""
        for _ in range(most):
            try:
                size = self._socket.recv_into(self._staging)
            except BlockingIOError:
                return
            fault = self._take(self._staging[:size])
            if fault:
                self.refused[fault] += 1

    def _take(self, packet: memoryview) -> str:
        """Write a packet to where it belongs; or say what is wrong with it."""
        end = len(packet) - _PROOF_BYTES
        proved = end >= _HEADER.size and hmac.compare_digest(
            _proof(self._address, packet[:end]), packet[end:]
        )
        if not proved:
            return "stranger"
        magic, version, _, epoch, bucket, number, size = _HEADER.unpack_from(packet)
        if (magic, version, epoch) != (_MAGIC, _VERSION, self._epoch):
            return "stranger"
        due = self._buckets.get(bucket)
        if due is None:
            return "stale"
        if number >= due.missing.size or not size == end - _HEADER.size == len(due.room(number)):
            return "stranger"
        if not due.missing[number]:
            return "twice"
        due.room(number)[:] = packet[_HEADER.size : end]
        due.missing[number] = False
        return ""


def _opened(here: str, set_up: Callable[[socket.socket, bytes], None]) -> socket.socket:
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    forks.own(link)
    try:
        set_up(link, socket.inet_aton(here))
    except OSError as error:
        link.close()
        raise _unavailable(here, error) from error
    return link


def _widen(link: socket.socket) -> None:
    """Make room for what comes while this rank does something else, as much as is permitted."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    with contextlib.suppress(OSError):  # beyond the system's limit, for those who may
        link.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _RECEIVE_BUFFER_BYTES)


def _proof(address: Address, packet: memoryview) -> bytes:
    return hmac.digest(address.secret, packet, "sha256")[:_PROOF_BYTES]


def _unavailable(here: str, error: OSError) -> TransportError:
    return TransportError(
        f"there is no multicast on {here} ({error.strerror or error}); set GLOO_SOCKET_IFNAME to "
        "an interface with an IPv4 address and multicast, or use another exchange.broadcast"
    )


def _trouble(address: Address, here: str) -> str:
    return (
        f"packets to {address.group} do not get through on the interface of {here}; set "
        "GLOO_SOCKET_IFNAME to the one that the ranks share, have switches and firewalls between "
        "them pass multicast (IGMP, UDP), or use another exchange.broadcast"
    )
