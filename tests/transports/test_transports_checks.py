"""Checks of frames: a MAC is of one frame in one place of one stream, as it is written down."""

from __future__ import annotations

import hashlib
import hmac
import struct

from hypothesis import given
from hypothesis import strategies as st

from compressa.transports.checks import CHECKSUM, CHECKSUMS, Keys, Mac

SECRET = b"the secret of a test"
FRONT, DATA = memoryview(bytes(range(32))), memoryview(b"some data")


def test_without_a_secret_there_are_checksums() -> None:
    assert CHECKSUMS.to(1) is CHECKSUMS.named("x").coming_from(2, 5) is CHECKSUM
    assert CHECKSUM.of(FRONT, DATA) == CHECKSUM.of(DATA, DATA)


@given(st.binary(max_size=100), st.integers(0, 5))
def test_a_mac_is_hmac_sha256_of_number_front_and_data(data: bytes, number: int) -> None:
    check = Keys(2, SECRET).to(1, 3)
    for _ in range(number):
        check.of(FRONT, DATA)
    key = hmac.digest(SECRET, struct.pack("<III", 2, 1, 3), "sha256")
    text = struct.pack("<Q", number) + bytes(FRONT) + data
    due = hmac.new(key, text, hashlib.sha256).digest()[:8]
    assert check.of(FRONT, memoryview(data)) == int.from_bytes(due, "little")


def test_both_ends_agree_and_nobody_else() -> None:
    sender, receiver = Keys(0, SECRET), Keys(1, SECRET)
    due = sender.to(1).of(FRONT, DATA)
    assert receiver.coming_from(0).of(FRONT, DATA) == due
    others = [
        receiver.to(0),  # the other direction
        sender.to(2),
        sender.to(1, 1),  # another connection
        sender.named("later").to(1),
        Keys(0, SECRET + b"!").to(1),
    ]
    assert due not in {other.of(FRONT, DATA) for other in others}


def test_what_is_taken_back_is_numbered_anew() -> None:
    check = Mac(b"key")
    macs = [check.of(FRONT, DATA) for _ in range(4)]
    assert len(set(macs)) == 4
    check.take_back(3)
    assert [check.of(FRONT, DATA) for _ in range(3)] == macs[1:]


@given(st.integers(0, 31), st.integers(0, 7))
def test_each_bit_of_the_header_counts(index: int, bit: int) -> None:
    changed = bytearray(FRONT)
    changed[index] ^= 1 << bit
    assert Mac(b"key").of(memoryview(changed), DATA) != Mac(b"key").of(FRONT, DATA)
