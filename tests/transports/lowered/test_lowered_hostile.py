"""What comes over a lowered sum's socket is checked before memory is written, as everywhere."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
import torch
from _lowered import CHUNK_BYTES, EPOCH, KEY, End, frame
from compressa.kernels.checksums import checksum

from compressa.errors import CompressaError, PayloadError, PeerLost, StateError
from compressa.testing.memory import Guarded
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind
from compressa.transports.lowered import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="compiled sums are for 64-bit Linux")

ELEMS = 100


class Attacked:
    """A rank that waits for a sum with what is a plain socket here."""

    def __init__(self, name: str = "recursive_doubling", **how: int) -> None:
        near, self.far = socket.socketpair()
        self.end = End(0, {1: [near]}, **how)
        self.guarded = Guarded(ELEMS, torch.float32, 0)
        self.values = self.guarded.tensor
        self.values.fill_(1.0)
        self.end.start(self.end.program(name, self.values), self.values, KEY)
        self.far.settimeout(5.0)

    def failure(self) -> CompressaError:
        self.end.until(1)
        assert not self.end.done
        assert self.guarded.intact
        assert (self.values == 1.0).all()
        (failure,) = self.end.failures
        assert not self.end.loop.busy
        return failure


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    made = Attacked()
    yield made
    made.end.close()
    made.far.close()


def data_of(value: float) -> bytes:
    return bytes(torch.full((ELEMS,), value).view(torch.uint8).numpy())


def test_what_is_right_is_taken_however_it_is_cut() -> None:
    whole = frame(data_of(2.0))
    for cut in range(1, len(whole), 7):
        attacked = Attacked()
        attacked.far.sendall(whole[:cut])
        attacked.end.loop.wait(-1, 0.0)
        attacked.far.sendall(whole[cut:])
        attacked.end.until(1)
        assert attacked.end.done == [KEY]
        assert (attacked.values == 3.0).all()
        attacked.end.close()
        attacked.far.close()


def test_what_it_sends_is_what_transports_read(attacked: Attacked) -> None:
    attacked.end.loop.wait(-1, 0.0)
    sent = attacked.far.recv(1 << 16)
    assert sent == frame(data_of(1.0))


def test_every_changed_bit_of_a_header_is_refused() -> None:
    whole = frame(data_of(2.0))
    for bit in range(0, 8 * FRAME_HEADER_BYTES, 5):
        attacked = Attacked()
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        attacked.far.sendall(changed)
        assert isinstance(attacked.failure(), PayloadError)
        attacked.end.close()
        attacked.far.close()


@pytest.mark.parametrize("at", [0, 1, 199, 399])
def test_changed_data_is_refused(attacked: Attacked, at: int) -> None:
    changed = bytearray(frame(data_of(2.0)))
    changed[FRAME_HEADER_BYTES + at] ^= 0x10
    attacked.far.sendall(changed)
    assert "checksum is wrong" in str(attacked.failure())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": EPOCH + 1}, "is of epoch 8, this is epoch 7"),
        (
            {"message_bytes": 4 * ELEMS + 4},
            "rank 1 sends 404 bytes for unit 5, stage 0 of step 2, where 400",
        ),
        ({"offset_bytes": 4, "message_bytes": 4 * ELEMS + 4}, "404 bytes for unit 5"),
        ({"message_bytes": 4 * ELEMS - 4}, "has 400 bytes at 0"),
        ({"kind": 1}, "has magic"),
    ],
)
def test_contradictions_are_refused(
    attacked: Attacked, fields: dict[str, int], message: str
) -> None:
    attacked.far.sendall(frame(data_of(2.0), **fields))
    assert message in str(attacked.failure())


def test_frames_of_a_message_come_in_their_order(attacked: Attacked) -> None:
    half = data_of(2.0)[:200]
    attacked.far.sendall(frame(half, message_bytes=400, offset_bytes=200))
    assert "has byte 200 of a message where byte 0 is due" in str(attacked.failure())


def test_a_frame_that_cuts_an_element_is_refused_where_it_is_added_as_it_comes() -> None:
    attacked = Attacked("ring")  # in 52 and 48 elements
    try:
        attacked.far.sendall(frame(data_of(2.0)[:6], message_bytes=4 * 48))
        assert "has 6 bytes at 0" in str(attacked.failure())
    finally:
        attacked.end.close()
        attacked.far.close()


def test_frames_are_no_longer_than_a_chunk(attacked: Attacked) -> None:
    attacked.far.sendall(frame(bytes(CHUNK_BYTES + 8)))
    assert f"has {CHUNK_BYTES + 8} bytes at 0" in str(attacked.failure())


def test_an_empty_frame_is_refused(attacked: Attacked) -> None:
    attacked.far.sendall(frame(b""))
    assert "has 0 bytes" in str(attacked.failure())


def test_what_nobody_waits_for_is_kept_within_a_limit() -> None:
    attacked = Attacked(early_bytes=1000)
    for unit in range(2):
        attacked.far.sendall(frame(bytes(400), Key(3, unit, 0)))
    attacked.end.loop.wait(-1, 0.05)
    assert not attacked.end.failures
    attacked.far.sendall(frame(bytes(400), Key(3, 2, 0)))
    assert "1200 bytes that nobody waits for, more than 1000" in str(attacked.failure())
    attacked.end.close()
    attacked.far.close()


def test_a_message_that_came_early_with_another_length_is_refused(attacked: Attacked) -> None:
    attacked.far.sendall(frame(bytes(404), Key(3, 0, 0)))
    attacked.end.loop.wait(-1, 0.05)
    values = torch.ones(ELEMS)
    attacked.end.start(attacked.end.program("recursive_doubling", values), values, Key(3, 0, 0))
    assert "404 bytes for unit 0, stage 0 of step 3, where 400 are due" in str(attacked.failure())


def test_a_stream_that_ends_while_it_owes_something_is_a_loss(attacked: Attacked) -> None:
    attacked.far.close()
    failure = attacked.failure()
    assert isinstance(failure, PeerLost)
    assert failure.rank == 1


def test_a_stream_that_ends_within_a_frame_is_a_loss(attacked: Attacked) -> None:
    attacked.far.sendall(frame(data_of(2.0))[:60])
    attacked.far.shutdown(socket.SHUT_WR)
    failure = attacked.failure()
    assert isinstance(failure, PeerLost)
    assert "in the middle of a frame" in str(failure)


def test_a_connection_that_is_reset_is_a_loss() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    end, values = End(0, {1: [near]}), torch.ones(ELEMS)
    end.start(end.program("ring", values), values, KEY)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    end.until(1)
    (failure,) = end.failures
    assert isinstance(failure, PeerLost)
    assert "reset" in str(failure)
    end.close()


def test_a_failure_is_told_whatever_else_is_ready_at_the_same_time(attacked: Attacked) -> None:
    changed = bytearray(frame(data_of(2.0)))
    changed[FRAME_HEADER_BYTES] ^= 1
    attacked.far.sendall(changed)
    ready, other = socket.socketpair()
    with ready, other:
        other.send(b"!")
        for _ in range(3):
            if attacked.end.loop.busy:
                attacked.end.loop.wait(ready.fileno(), 1.0)
    assert isinstance(attacked.failure(), PayloadError)


def test_nothing_is_written_after_a_failure(attacked: Attacked) -> None:
    attacked.end.loop.fail()
    attacked.end.loop.fail()
    assert not attacked.end.loop.busy
    assert (attacked.values == 1.0).all()
    values = torch.ones(ELEMS)
    attacked.end.start(attacked.end.program("ring", values), values, Key(9, 0, 0))
    assert isinstance(attacked.end.failures[0], StateError)


def test_a_call_that_is_interrupted_is_gone_on_with_by_nobody(attacked: Attacked) -> None:
    end = attacked.end
    end.loop.fail()
    values = torch.ones(ELEMS)
    assert not end.loop.run(end.program("ring", values), values, 1, Key(9, 0, 0))


def test_the_checksum_is_that_of_all_frames() -> None:
    data = torch.arange(100, dtype=torch.uint8).numpy()
    header = Frame(Kind.DATA, EPOCH, KEY, 100, 0, 100).pack(data.data)
    assert struct.unpack_from("<Q", header, 32)[0] == checksum(data)
