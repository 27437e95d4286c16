"""Connection: frames over a real TCP socket arrive whole, however the network cuts them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from _tcp_ends import (
    CHUNK_BYTES,
    EPOCH,
    PEER,
    Bench,
    content,
    frame_bytes,
    receive,
    reset,
    stream,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.errors import PayloadError, PeerLost
from compressa.testing.memory import Guarded
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**how: Any) -> Bench:
        made.append(Bench(**how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


# What comes is put together


def test_frames_cut_at_every_byte_arrive_whole(bench: Bench) -> None:
    lengths = [1, 40, 100]
    for cut in range(1, sum(lengths) + 4 * FRAME_HEADER_BYTES):
        keys = [Key(cut, unit, 0) for unit in range(3)]
        buffers = [torch.zeros(length, dtype=torch.uint8) for length in lengths]
        for key, buffer in zip(keys, buffers, strict=True):
            bench.near.expect(key, buffer, exact=True)
        wire = b"".join(
            stream(key, content(key, length), 60) for key, length in zip(keys, lengths, strict=True)
        )
        assert len(wire) == sum(lengths) + 4 * FRAME_HEADER_BYTES
        bench.far.sendall(wire[:cut])
        bench.reactor.run_once(0.0)
        bench.far.sendall(wire[cut:])
        bench.until(lambda keys=keys: len(bench.near.arrived) == 3 * keys[0].step)
        for key, buffer in zip(keys, buffers, strict=True):
            assert torch.equal(buffer, content(key, buffer.numel()))
            assert bench.near.arrived[key].data_ptr() == buffer.data_ptr()
    assert not bench.near.failures


def test_sockets_within_a_host_carry_frames_as_well(benches: Callable[..., Bench]) -> None:
    bench, key = benches(pair=socket.socketpair), Key(1, 2, 3)
    data, buffer = content(key, 2 * CHUNK_BYTES), torch.zeros(2 * CHUNK_BYTES, dtype=torch.uint8)
    bench.near.send(key, data)
    wire = receive(bench, data.numel() + 2 * FRAME_HEADER_BYTES)
    assert wire == stream(key, data)
    bench.near.expect(key, buffer, exact=True)
    bench.far.sendall(wire)
    bench.until(lambda: key in bench.near.arrived)
    assert torch.equal(buffer, data)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 150_000), min_size=1, max_size=6),
    chunk=st.sampled_from([100, 4096, 65_536, 200_000]),
    cuts=st.lists(st.integers(1, 60_000), min_size=1, max_size=5),
    early=st.integers(0, 5),
)
def test_any_messages_in_any_pieces_arrive_in_their_own_memory(
    lengths: list[int], chunk: int, cuts: list[int], early: int
) -> None:
    bench = Bench(chunk_bytes=chunk)
    keys = [Key(0, unit, unit) for unit in range(len(lengths))]
    buffers = [Guarded(length + 3, torch.uint8, 0) for length in lengths]
    wire = b"".join(
        stream(k, content(k, length), chunk) for k, length in zip(keys, lengths, strict=True)
    )
    for unit in range(early, len(lengths)):  # the others are asked for when they have come
        bench.near.expect(keys[unit], buffers[unit].tensor)
    begin, turn = 0, 0
    bench.far.setblocking(False)
    while begin < len(wire):
        piece = wire[begin : begin + cuts[turn % len(cuts)]]
        with contextlib.suppress(BlockingIOError):
            begin += bench.far.send(piece)
        turn += 1
        bench.reactor.run_once(0.0)
    for unit in range(min(early, len(lengths))):
        bench.near.expect(keys[unit], buffers[unit].tensor)
    bench.until(lambda: len(bench.near.arrived) == len(lengths))
    for key, length, buffer in zip(keys, lengths, buffers, strict=True):
        assert torch.equal(bench.near.arrived[key], content(key, length))
        assert bench.near.arrived[key].data_ptr() == buffer.tensor.data_ptr()
        assert buffer.intact
    assert not bench.near.failures
    bench.close()


def test_a_large_message_is_read_straight_into_place(bench: Bench) -> None:
    """All but what came with the header's read goes around the staging buffer."""
    key, size = Key(0, 0, 0), 8 * CHUNK_BYTES
    staged = bench.near.link.connections[0]._staging
    staged[:] = bytes(len(staged))
    buffer = torch.zeros(size, dtype=torch.uint8)
    bench.near.expect(key, buffer)
    data = torch.full((size,), 0xA7, dtype=torch.uint8)
    for start in range(0, size, CHUNK_BYTES):
        frame = Frame(Kind.DATA, EPOCH, key, size, start, CHUNK_BYTES)
        wire = frame_bytes(frame, data[:CHUNK_BYTES])
        bench.far.sendall(wire[:FRAME_HEADER_BYTES])
        bench.settle()
        bench.far.sendall(wire[FRAME_HEADER_BYTES:])
        bench.settle()
    bench.until(lambda: key in bench.near.arrived)
    assert torch.equal(buffer, data)
    assert bytes([0xA7] * 8) not in bytes(staged)


# What must not come


def refused(bench: Bench, wire: bytes) -> str:
    """Have a connection take nonsense; return what it says, and see that it reads on."""
    bench.far.sendall(wire)
    bench.until(lambda: bench.near.failures)
    assert isinstance(bench.near.failures[0], PayloadError)
    bench.far.sendall(b"\xa7" * 100_000)  # taken, and understood no more
    bench.far.shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.departures)
    assert len(bench.near.failures) == 1
    return str(bench.near.failures[0])


KEY = Key(0, 0, 0)
NONSENSE = [
    (b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n", "magic"),
    (b"\xff" * FRAME_HEADER_BYTES, "magic"),
    (bytes(FRAME_HEADER_BYTES), "magic"),
    (stream(KEY, content(KEY, 10), epoch=EPOCH + 1), "of epoch 5, this is epoch 4"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 10, 0, 11)), "11 bytes at 0 of a message of 10"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 9999, 0, CHUNK_BYTES + 1)), "4097 bytes at 0"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 16, 0, 0)), "holds none"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 16, 4, 4)), "byte 4 of a message where byte 0"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 17, 0, 17)), "sends 17 bytes .* at most 16 are due"),
    (frame_bytes(Frame(Kind.DATA, EPOCH, Key(0, 9, 9), 2**32 - 1, 0, 8)), "nobody waits for"),
]


@pytest.mark.parametrize(("wire", "said"), NONSENSE)
def test_nonsense_is_refused_and_touches_no_memory(wire: bytes, said: str, bench: Bench) -> None:
    buffer = Guarded(16, torch.uint8, 0)
    bench.near.expect(KEY, buffer.tensor)
    text = refused(bench, wire)
    assert f"rank {PEER}" in text
    assert re.search(said, text)
    assert not buffer.tensor.any()
    assert buffer.intact


@pytest.mark.parametrize("length", [40, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
@pytest.mark.parametrize("split", [0, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + 20])
@pytest.mark.parametrize("inverted", [False, True])
def test_changed_bytes_are_refused_and_their_link_is_named(
    length: int, split: int, inverted: bool, bench: Bench
) -> None:
    data = content(KEY, length)
    wire, size = bytearray(stream(KEY, data)), FRAME_HEADER_BYTES + min(length, CHUNK_BYTES)
    if inverted:
        wire[size // 2 : size] = bytes(byte ^ 0xFF for byte in wire[size // 2 : size])
    else:
        wire[size - 7] ^= 4
    bench.near.expect(KEY, torch.zeros(length, dtype=torch.uint8))
    bench.far.sendall(wire[:split])
    bench.settle()
    text = refused(bench, bytes(wire[split:]))
    assert f"a frame from rank {PEER}" in text
    assert "is not what was sent: its checksum is wrong" in text
    assert not bench.near.arrived


def test_nonsense_behind_good_frames_costs_none_of_them(bench: Bench) -> None:
    key, buffer = Key(1, 1, 1), torch.zeros(100, dtype=torch.uint8)
    bench.near.expect(key, buffer)
    assert "magic" in refused(bench, stream(key, content(key, 100)) + b"\xff" * FRAME_HEADER_BYTES)
    assert torch.equal(buffer, content(key, 100))


@settings(max_examples=40)
@given(wire=st.binary(min_size=FRAME_HEADER_BYTES, max_size=400), good=st.booleans())
def test_random_bytes_write_nowhere(wire: bytes, good: bool) -> None:
    bench = Bench()
    buffer = Guarded(16, torch.uint8, 0)
    bench.near.expect(KEY, buffer.tensor)
    prefix = frame_bytes(Frame(Kind.DATA, EPOCH, KEY, 16, 0, 8)) if good else b""
    bench.far.sendall(prefix + wire)
    bench.far.shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.departures or bench.near.failures)
    assert buffer.intact
    assert bool(buffer.tensor.any()) <= good
    bench.close()


def test_a_message_asked_for_halfway_moves_into_place(bench: Bench) -> None:
    key, size = Key(0, 0, 0), 3 * CHUNK_BYTES
    wire = stream(key, content(key, size))
    half = len(wire) // 2 + 5
    bench.far.sendall(wire[:half])
    bench.settle()
    buffer = torch.zeros(size, dtype=torch.uint8)
    bench.near.expect(key, buffer, exact=True)
    assert not bench.near.arrived
    bench.far.sendall(wire[half:])
    bench.until(lambda: key in bench.near.arrived)
    assert torch.equal(buffer, content(key, size))
    assert bench.near.arrived[key].data_ptr() == buffer.data_ptr()


# How it ends


def test_an_end_between_two_frames_is_a_goodbye(bench: Bench) -> None:
    bench.far.sendall(stream(KEY, content(KEY, 100)))
    bench.far.shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.departures)
    assert bench.near.departures == [PEER]
    assert not bench.near.failures
    bench.settle()
    assert bench.near.departures == [PEER]
    bench.near.expect(KEY, torch.zeros(100, dtype=torch.uint8))
    assert KEY in bench.near.arrived  # what was sent before the goodbye counts


@pytest.mark.parametrize("cut", [1, 31, 32, 33, 131, 133, 200])
@pytest.mark.parametrize("early", [True, False])
def test_an_end_within_a_frame_is_a_loss(cut: int, early: bool, bench: Bench) -> None:
    buffer = torch.zeros(200, dtype=torch.uint8)
    if not early:
        bench.near.expect(KEY, buffer)
    wire = stream(KEY, content(KEY, 200), 100)
    assert cut not in (0, len(wire) // 2, len(wire))
    bench.far.sendall(wire[:cut])
    bench.settle()
    bench.far.shutdown(socket.SHUT_WR)
    bench.until(lambda: bench.near.failures)
    check_lost(bench, "in the middle of a frame")


def check_lost(bench: Bench, why: str) -> None:
    failure = bench.near.failures[0]
    assert isinstance(failure, PeerLost)
    assert failure.rank == PEER
    assert str(failure).startswith(f"rank {PEER} is lost: its connection was closed")
    assert why in str(failure)
    assert not bench.near.departures
    assert not bench.near.link.open
    bench.near.link.finish(drop=True)
    bench.near.link.finish()
    bench.near.link.close()
    bench.near.link.close()
    bench.settle()
    assert len(bench.near.failures) == 1


@pytest.mark.parametrize("before", [0, 10, FRAME_HEADER_BYTES + 5])
def test_a_reset_is_a_loss(before: int, bench: Bench) -> None:
    bench.far.sendall(stream(KEY, content(KEY, 100))[:before])
    bench.settle()
    reset(bench.far)
    bench.until(lambda: bench.near.failures)
    check_lost(bench, "Connection reset by peer")


def test_a_reset_is_found_by_whoever_only_sends(benches: Callable[..., Bench]) -> None:
    bench = benches(buffer_bytes=4096)
    bench.near.send(KEY, torch.zeros(4_000_000, dtype=torch.uint8))
    bench.settle()
    assert not bench.near.sent
    reset(bench.far)
    bench.until(lambda: bench.near.failures)
    check_lost(bench, "")
    bench.near.send(Key(1, 0, 0), torch.zeros(8, dtype=torch.uint8))  # goes nowhere, harmlessly
    assert not bench.near.sent


def test_after_a_drop_nothing_is_taken_any_more(bench: Bench) -> None:
    buffer = torch.zeros(100, dtype=torch.uint8)
    bench.near.expect(KEY, buffer)
    wire = stream(KEY, content(KEY, 100))
    bench.far.sendall(wire[:70])
    bench.settle()
    bench.near.link.finish(drop=True)
    bench.near.inbox.clear()
    buffer.zero_()
    bench.far.sendall(wire[70:] + b"nonsense" * 1000)
    bench.far.close()
    bench.until(lambda: bench.near.departures)
    assert not buffer.any()
    assert not bench.near.arrived
    assert not bench.near.failures


def test_a_close_reaches_the_peer_although_a_forked_process_has_the_socket(bench: Bench) -> None:
    copy = os.dup(bench.near.link.connections[0]._link.fileno())
    try:
        bench.near.link.close()
        assert bench.far.recv(1) == b""
    finally:
        os.close(copy)


# What the kernel keeps


def test_the_kernel_keeps_little_that_it_has_not_sent(benches: Callable[..., Bench]) -> None:
    link = benches(credit_bytes=CHUNK_BYTES + 54_321).near.link.connections[0]._link
    assert link.getsockopt(socket.IPPROTO_TCP, 25) == 54_321  # TCP_NOTSENT_LOWAT


def test_on_a_slow_link_the_kernel_keeps_little_at_all(benches: Callable[..., Bench]) -> None:
    link = benches(kept_bytes=8192).near.link.connections[0]._link
    assert link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 8192  # Linux's own, too
