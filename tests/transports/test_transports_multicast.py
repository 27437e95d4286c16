"""Multicast over real sockets: what belongs is written, and nothing else."""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from _until import until

from compressa.engine.replicas import broadcasting
from compressa.errors import PeerLost, TransportError
from compressa.testing.inputs import generator
from compressa.transports.multicast import (
    PACKET_BYTES,
    MulticastReceiver,
    MulticastSender,
)
from compressa.transports.multicast_address import Address, agree_on_address
from compressa.transports.reactor import Reactor

SIZE = 2 * PACKET_BYTES + 100


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.fixture
def address() -> Address:
    return Address.drawn()


@pytest.fixture
def sender(address: Address) -> Iterator[MulticastSender]:
    made = MulticastSender(address, 7, None, 5.0)
    yield made
    made.close()


@pytest.fixture
def receiver(address: Address) -> Iterator[MulticastReceiver]:
    made, reactor = MulticastReceiver(address, 7), Reactor()
    made.attach(reactor)
    yield made
    made.detach(reactor)
    reactor.close()


def some_bytes() -> torch.Tensor:
    return torch.randint(256, (SIZE,), dtype=torch.uint8, generator=generator(1))


def missing(receiver: MulticastReceiver, due: int) -> list[bool]:
    """What is missing, once so few are."""
    until(lambda: receiver.missing(3).sum() <= due)
    return [bool(bit) for bit in receiver.missing(3)]


def test_packets_land_where_they_belong(
    sender: MulticastSender, receiver: MulticastReceiver
) -> None:
    data, room = some_bytes(), torch.zeros(SIZE, dtype=torch.uint8)
    receiver.expect(3, room)
    assert sender.packets(SIZE) == 3
    assert sender.send(3, data, [2, 0]) == 2
    assert missing(receiver, 1) == [False, True, False]
    assert not room[PACKET_BYTES : 2 * PACKET_BYTES].any()
    sender.send(3, data, [1, 2])
    assert not any(missing(receiver, 0))
    assert torch.equal(room, data)
    receiver.forget(3)
    assert (sender.sent, dict(receiver.refused)) == (4, {"twice": 1})


def test_two_ranks_on_one_host_both_hear(address: Address, sender: MulticastSender) -> None:
    receivers, reactor = [MulticastReceiver(address, 7) for _ in range(2)], Reactor()
    rooms = [torch.zeros(SIZE, dtype=torch.uint8) for _ in receivers]
    for receiver, room in zip(receivers, rooms, strict=True):
        receiver.expect(3, room)
    sender.send(3, some_bytes(), [0, 1, 2])
    for receiver, room in zip(receivers, rooms, strict=True):
        missing(receiver, 0)
        assert torch.equal(room, some_bytes())
        receiver.detach(reactor)
    reactor.close()


def packet(
    secret: bytes,
    *,
    magic: int = 0x636D,
    version: int = 1,
    epoch: int = 7,
    bucket: int = 3,
    number: int = 0,
    said: int = PACKET_BYTES,
    held: int = PACKET_BYTES,
) -> bytes:
    """A packet as the documented layout has it."""
    head = struct.pack("<HBBIIIII", magic, version, 0, epoch, bucket, number, said, 0)[:20]
    body = head + b"\7" * held
    return body + hmac.digest(secret, body, "sha256")[:16]


STRANGE = {
    "another secret": lambda secret: packet(b"x" * 32),
    "no proof": lambda secret: packet(secret)[:-16],
    "short": lambda secret: b"hello",
    "empty": lambda secret: b"",
    "another magic": lambda secret: packet(secret, magic=1),
    "another version": lambda secret: packet(secret, version=2),
    "another epoch": lambda secret: packet(secret, epoch=6),
    "beyond the last": lambda secret: packet(secret, number=3),
    "longer than its place": lambda secret: packet(secret, number=2),
    "shorter than its place": lambda secret: packet(secret, said=5, held=5),
    "a length that is not its own": lambda secret: packet(secret, said=5),
    "changed on the way": lambda secret: packet(secret)[:50] + b"!" + packet(secret)[51:],
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_what_does_not_fit_is_counted_and_not_written(
    strange: object, address: Address, receiver: MulticastReceiver
) -> None:
    room = torch.zeros(SIZE, dtype=torch.uint8)
    receiver.expect(3, room)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        here = socket.inet_aton("127.0.0.1")
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        stranger.sendto(strange(address.secret), address[:2])
        stranger.sendto(packet(address.secret, bucket=4), address[:2])
        stranger.sendto(packet(address.secret), address[:2])  # the one that fits
    assert missing(receiver, 2) == [False, True, True]
    assert bool((room[:PACKET_BYTES] == 7).all())
    assert not room[PACKET_BYTES:].any()
    assert dict(receiver.refused) == {"stranger": 1, "stale": 1}


def test_the_sender_goes_on_a_little_faster_than_what_came_through(address: Address) -> None:
    sender = MulticastSender(address, 7, None, 5.0)
    sender.send(3, torch.zeros(64 * PACKET_BYTES, dtype=torch.uint8), range(64))
    rate = sender._burst_bits_per_s
    sender.lost(0.01, 64)
    assert sender._pacer.rate_bits_per_s is None
    sender.lost(0.5, 64)
    assert sender._pacer.rate_bits_per_s == pytest.approx(0.625 * rate)
    sender.lost(0.0, 64)
    assert sender._pacer.rate_bits_per_s == pytest.approx(0.625 * 1.25 * rate)
    for share in (0.5, 1.0):  # chance
        sender.lost(share, 2)
    assert sender._pacer.rate_bits_per_s == pytest.approx(0.625 * 1.25 * rate)
    sender.close()
    with pytest.raises(TransportError):
        sender.send(3, torch.zeros(1, dtype=torch.uint8), [0])


def test_where_nothing_comes_again_and_again_the_next_burst_waits(sender: MulticastSender) -> None:
    pauses = []
    for share in (1.0, 1.0, 1.0, 1.0, 0.9, 1.0, *[1.0] * 8):
        sender.lost(share, 32)
        pauses.append(sender._pause_s)
    assert pauses[:6] == pytest.approx([0.0, 0.05, 0.1, 0.2, 0.0, 0.0])
    assert pauses[-1] == pytest.approx(0.8)


def test_no_burst_is_faster_than_the_limit(address: Address) -> None:
    sender = MulticastSender(address, 7, 1e9, 5.0)
    sender.send(3, torch.zeros(64 * PACKET_BYTES, dtype=torch.uint8), range(64))
    assert sender._burst_bits_per_s < 1.1e9
    sender.lost(0.0, 64)
    assert sender._pacer.rate_bits_per_s == 1e9
    sender.close()


def test_a_burst_ends_in_time(address: Address) -> None:
    sender = MulticastSender(address, 7, 1e7, 0.05)
    sent = sender.send(3, torch.zeros(64 * PACKET_BYTES, dtype=torch.uint8), range(64))
    assert 1 <= sent < 64
    sender.close()


def test_an_interface_without_an_address_is_named(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compressa.transports.multicast.local_address", lambda: "203.0.113.9")
    with pytest.raises(TransportError, match=r"203\.0\.113\.9.*GLOO_SOCKET_IFNAME"):
        MulticastReceiver(address, 7)
    with pytest.raises(TransportError, match=r"203\.0\.113\.9.*GLOO_SOCKET_IFNAME"):
        MulticastSender(address, 7, None, 1.0)


def test_an_address_is_read_as_it_was_drawn(address: Address) -> None:
    def gather(own: bytes, what: str) -> list[bytes]:
        return [own or address.message(), b""]

    assert agree_on_address(1, 0, gather) == address
    assert agree_on_address(0, 0, gather).group.startswith("239.255.")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"7", b'["10.0.0.1", 50000, ""]', b'["239.255.0.1", 0, "00"]', b"{}"]
)
def test_an_address_that_can_not_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(PeerLost, match="rank 2"):
        Address.read(text, 2)


def test_programs_that_use_a_socket_are_ended_before_it_is_closed() -> None:
    session, end = mock.Mock(), mock.Mock(spec=MulticastReceiver)
    session.all_gather.return_value = [b"", b""]
    with pytest.raises(TransportError), broadcasting._open_on_all(session, lambda: end):
        raise TransportError("rank 1 heard nothing")
    names = [name for name, _, _ in session.method_calls]
    assert names == ["all_gather", "serve", "fail", "serve"]
