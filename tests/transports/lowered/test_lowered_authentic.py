"""With a secret, every frame of the compiled loop bears the MAC that all transports make."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from _lowered import CHUNK_BYTES, EPOCH, KEY, End, ends, side_by_side

from compressa.collectives.base import Exchange
from compressa.errors import PayloadError
from compressa.testing.memory import Guarded
from compressa.transports.base import Key
from compressa.transports.checks import Check, Keys
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame
from compressa.transports.lowered import AVAILABLE
from compressa.transports.lowered.digests import openssl

pytestmark = pytest.mark.skipif(
    not AVAILABLE or openssl() is None,
    reason="compiled MACs are for 64-bit Linux, and a Python whose OpenSSL can be found",
)

SECRET = b"known to the ranks alone"
NUMBER = 0  # of the connection
LONG = 2 * CHUNK_BYTES + 5


class Attacked:
    """A rank with a secret that waits for a message; its peer is a plain socket here."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.far.settimeout(5.0)
        self.end = End(0, {1: [near]}, keys=Keys(0, SECRET))
        self.guarded = Guarded(LONG, torch.uint8, 0)
        self.sealing, self.opening = Keys(1, SECRET).to(0, NUMBER), Keys(1, SECRET).coming_from(0)

    def expect(self, key: Key = KEY) -> None:
        self.end.exchange(key, Exchange({}, {1: self.guarded.tensor}))

    def refused(self) -> bool:
        self.end.until(1)
        assert self.guarded.intact
        if not self.end.failures:
            return False
        (failure,) = self.end.failures
        assert isinstance(failure, PayloadError)
        assert "is not authentic: it was forged" in str(failure)
        assert not self.end.done
        return True

    def close(self) -> None:
        self.end.close()
        self.far.close()


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    made = Attacked()
    yield made
    made.close()


def sealed(data: bytes, check: Check, key: Key = KEY) -> list[bytes]:
    """A message, cut into frames."""
    made = []
    for low in range(0, len(data), CHUNK_BYTES):
        part = data[low : low + CHUNK_BYTES]
        frame = Frame(Kind.DATA, EPOCH, key, len(data), low, len(part))
        made.append(bytes(frame.pack(memoryview(part), check)) + part)
    return made


DATA = bytes(range(256)) * (LONG // 256) + bytes(LONG % 256)


def test_what_is_sealed_is_taken_frame_after_frame(attacked: Attacked) -> None:
    for step in range(3):  # the count of frames goes on from message to message
        attacked.expect(Key(step, 5, 0))
        attacked.far.sendall(b"".join(sealed(DATA, attacked.sealing, Key(step, 5, 0))))
        attacked.end.until(step + 1)
        assert not attacked.end.failures
        assert bytes(attacked.guarded.tensor.numpy()) == DATA


def test_what_came_early_is_checked_as_well(attacked: Attacked) -> None:
    attacked.expect(Key(9, 0, 0))
    attacked.far.sendall(b"".join(sealed(DATA, attacked.sealing)))
    attacked.end.loop.wait(-1, 0.05)
    attacked.expect()
    attacked.end.until(1)
    assert attacked.end.done == [KEY]
    assert bytes(attacked.guarded.tensor.numpy()) == DATA


def test_what_it_sends_is_what_transports_read(attacked: Attacked) -> None:
    data = torch.frombuffer(bytearray(DATA), dtype=torch.uint8)
    for step in range(2):
        attacked.end.exchange(Key(step, 5, 0), Exchange({1: data}, {}))
        attacked.end.until(step + 1)
    came = b""
    while len(came) < 2 * (LONG + 3 * FRAME_HEADER_BYTES):
        came += attacked.far.recv(1 << 16)
    read = memoryview(came)
    for _ in range(6):
        frame = read_frame(read, EPOCH, CHUNK_BYTES, "here")
        body = read[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + frame.data_bytes]
        frame.verify(body, "here", attacked.opening)
        read = read[FRAME_HEADER_BYTES + frame.data_bytes :]
    assert not read


@pytest.mark.parametrize("at", [0, 100, CHUNK_BYTES - 1])
def test_changed_data_is_refused(attacked: Attacked, at: int) -> None:
    attacked.expect()
    frames = sealed(DATA, attacked.sealing)
    changed = bytearray(frames[0])
    changed[FRAME_HEADER_BYTES + at] ^= 1
    attacked.far.sendall(bytes(changed))
    assert attacked.refused()


@pytest.mark.parametrize("what", ["repeated", "missing", "swapped"])
def test_frames_out_of_their_places_are_refused(attacked: Attacked, what: str) -> None:
    attacked.expect()
    first, second, third = sealed(DATA, attacked.sealing)
    other = Key(7, 0, 0)
    again = sealed(DATA[:CHUNK_BYTES], Keys(1, SECRET).to(0, NUMBER), other)[0]
    sent = {
        "repeated": first + second + again,  # sealed as the first frame of the stream
        "missing": sealed(DATA, _behind(attacked.sealing))[0],
        "swapped": sealed(DATA[:8], _behind(Keys(1, SECRET).to(0, NUMBER)), other)[0] + first,
    }[what]
    attacked.far.sendall(sent + third)
    assert attacked.refused()


def _behind(check: Check) -> Check:
    """The same check, as if a frame had gone before."""
    check.of(memoryview(bytes(32)), memoryview(b""))
    return check


@pytest.mark.parametrize(
    "keys",
    [
        Keys(1, b"another secret").to(0, NUMBER),
        Keys(1, SECRET).to(0, NUMBER + 1),
        Keys(1, SECRET).coming_from(0, NUMBER),
        Keys(1, SECRET).named("handshake").to(0, NUMBER),
        Keys(1).to(0, NUMBER),
    ],
    ids=["secret", "connection", "direction", "purpose", "checksum"],
)
def test_whoever_has_another_key_is_refused(attacked: Attacked, keys: Check) -> None:
    attacked.expect()
    attacked.far.sendall(b"".join(sealed(DATA, keys)))
    assert attacked.refused()


@pytest.mark.parametrize("name", ["ring", "recursive_doubling"])
def test_ranks_with_one_secret_sum_as_without(name: str) -> None:
    totals = []
    for secret in (None, SECRET):
        with ends(3, secret=secret) as ranks:
            values = [torch.arange(3000.0) * (rank + 1) for rank in range(3)]
            side_by_side(
                [
                    partial(end.sum, end.program(name, own), own, KEY)
                    for end, own in zip(ranks, values, strict=True)
                ]
            )
            assert not any(end.failures for end in ranks)
            totals.append(values)
    for plain, authentic in zip(*totals, strict=True):
        assert torch.equal(plain, authentic)
        assert torch.equal(plain, torch.arange(3000.0) * 6)
