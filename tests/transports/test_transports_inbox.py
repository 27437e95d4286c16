"""Inbox: messages arrive whole, in their own memory, whoever comes first; or are refused."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.errors import PayloadError
from compressa.testing.memory import Guarded
from compressa.transports.base import Key
from compressa.transports.frames import Frame, Kind
from compressa.transports.inbox import Inbox

LIMIT_BYTES = 4096


def message(key: Key, length: int) -> torch.Tensor:
    seed = key.unit * 31 + key.stage * 7 + key.step
    return (torch.arange(length) * 13 + seed).to(torch.uint8)


def send(inbox: Inbox, key: Key, data: torch.Tensor, start: int, stop: int) -> None:
    wrapped = key._replace(step=key.step & 0xFFFFFFFF)
    frame = Frame(Kind.DATA, 0, wrapped, data.numel(), start, stop - start)
    inbox.accept(frame, data[start:stop].numpy().data)


@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    chunk=st.integers(1, 64),
    order=st.randoms(use_true_random=False),
    exact=st.booleans(),
)
def test_messages_are_assembled_in_any_interleaving(
    lengths: list[int], chunk: int, order: random.Random, exact: bool
) -> None:
    inbox, keys = Inbox(1, LIMIT_BYTES), [Key(2**32 + i, i, i % 3) for i in range(len(lengths))]
    slack = 0 if exact else 9
    buffers = [Guarded(length + slack, torch.uint8, 0) for length in lengths]
    arrived: dict[int, torch.Tensor] = {}
    events = []
    for i, length in enumerate(lengths):
        events.append([("expect", i, 0)])
        events.append([("send", i, start) for start in range(0, length, chunk)])
    while events:
        queue = order.choice(events)
        what, i, start = queue.pop(0)
        if not queue:
            events.remove(queue)
        if what == "expect":
            inbox.expect(keys[i], buffers[i].tensor, exact, partial(arrived.__setitem__, i))
        else:
            data = message(keys[i], lengths[i])
            send(inbox, keys[i], data, start, min(start + chunk, lengths[i]))
    assert sorted(arrived) == list(range(len(lengths)))
    for i, length in enumerate(lengths):
        assert torch.equal(arrived[i], message(keys[i], length))
        assert arrived[i].data_ptr() == buffers[i].tensor.data_ptr()
        assert buffers[i].intact
    assert not inbox.asked


u8 = st.integers(0, 40)


@settings(max_examples=200)
@given(
    hostile=st.lists(st.tuples(st.integers(0, 2), u8, u8, u8), max_size=12),
    exact=st.booleans(),
    any_order_bytes=st.one_of(st.none(), st.integers(1, 8)),
)
def test_hostile_frames_are_refused_or_stay_in_bounds(
    hostile: list[tuple[int, int, int, int]], exact: bool, any_order_bytes: int | None
) -> None:
    inbox = Inbox(1, LIMIT_BYTES, any_order_bytes)
    buffer = Guarded(16, torch.uint8, 0)
    inbox.expect(Key(0, 0, 0), buffer.tensor, exact, lambda filled: None)
    for stage, size, offset, data in hostile:
        if offset + data > size:
            continue  # a frame's own header check has refused it
        frame = Frame(Kind.DATA, 0, Key(0, 0, stage), size, offset, data)
        try:
            inbox.accept(frame, memoryview(bytes([7] * data)))
        except PayloadError:
            break
    assert buffer.intact


def test_early_messages_are_limited_and_their_room_is_given_back() -> None:
    inbox = Inbox(5, 100)
    arrived: list[torch.Tensor] = []
    for step in range(10):  # 600 bytes in all, never more than 60 at once
        key = Key(step, 0, 0)
        send(inbox, key, message(key, 60), 0, 60)
        inbox.expect(key, torch.empty(60, dtype=torch.uint8), True, arrived.append)
    assert len(arrived) == 10
    send(inbox, Key(99, 0, 0), message(Key(99, 0, 0), 60), 0, 60)
    with pytest.raises(PayloadError, match="rank 5 sent 120 bytes that nobody waits for"):
        send(inbox, Key(100, 0, 0), message(Key(100, 0, 0), 60), 0, 60)


def test_a_huge_early_message_is_refused_before_memory_is_taken() -> None:
    frame = Frame(Kind.DATA, 0, Key(0, 0, 0), 2**32 - 1, 0, 1)
    with pytest.raises(PayloadError, match="nobody waits for"):
        Inbox(1, LIMIT_BYTES).accept(frame, memoryview(b"\0"))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("length", "exact"), [(9, True), (11, True), (11, False)])
def test_wrong_lengths_are_refused_whoever_comes_first(
    early: bool, length: int, exact: bool
) -> None:
    inbox, key = Inbox(2, LIMIT_BYTES), Key(4, 7, 1)
    buffer, data = torch.zeros(10, dtype=torch.uint8), message(key, length)

    def expect() -> None:
        inbox.expect(key, buffer, exact, lambda filled: None)

    def deliver() -> None:
        send(inbox, key, data, 0, length)

    first, second = (deliver, expect) if early else (expect, deliver)
    first()
    with pytest.raises(PayloadError, match=r"rank 2 sends (9|11) bytes .* stage 1 of step 4"):
        second()
    assert not buffer.any()


def frame_of(start: int, stop: int, size: int) -> Frame:
    return Frame(Kind.DATA, 0, Key(0, 0, 0), size, start, stop - start)


@settings(max_examples=80)
@given(
    length=st.integers(1, 200),
    chunk=st.integers(1, 64),
    order=st.randoms(use_true_random=False),
    asked_after=st.integers(0, 20),
)
def test_chunks_come_in_any_order_and_end_in_any_other(
    length: int, chunk: int, order: random.Random, asked_after: int
) -> None:
    inbox, key = Inbox(1, LIMIT_BYTES, chunk), Key(0, 0, 0)
    buffer, data, arrived = Guarded(length, torch.uint8, 0), message(key, length), []
    pieces = [
        frame_of(start, min(start + chunk, length), length) for start in range(0, length, chunk)
    ]
    events = [(inbox.begin, piece) for piece in pieces]
    order.shuffle(events)
    for number in range(2 * len(pieces) + 1):
        if number == min(asked_after, 2 * len(pieces)):
            inbox.expect(key, buffer.tensor, True, arrived.append)
        if not events:
            break
        assert not arrived
        event, piece = events.pop(0)
        if event == inbox.begin:
            event(piece)
            events.insert(order.randint(0, len(events)), (inbox.filled, piece))
        else:
            stop = piece.offset_bytes + piece.data_bytes
            inbox.room(piece)[:] = data[piece.offset_bytes : stop].numpy().data
            event(piece)
    assert len(arrived) == 1
    assert torch.equal(buffer.tensor, data)
    assert buffer.intact


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(
    ("start", "stop", "said"),
    [
        (8, 16, "byte 8 of a message twice"),
        (4, 12, "8 bytes at 4 of a message of 30, which is not one chunk of 8"),
        (12, 20, "8 bytes at 12"),
        (9, 10, "1 bytes at 9"),
        (16, 20, "4 bytes at 16"),
        (0, 16, "16 bytes at 0"),
        (24, 29, "5 bytes at 24"),
        (22, 30, "8 bytes at 22"),
        (0, 30, "30 bytes at 0"),
    ],
)
def test_no_byte_counts_twice_and_no_piece_of_a_chunk_counts_at_all(
    start: int, stop: int, said: str, done: bool
) -> None:
    """Over several connections a chunk may be sent again while the first is under way."""
    inbox, buffer = Inbox(2, LIMIT_BYTES, 8), Guarded(30, torch.uint8, 0)
    inbox.expect(Key(0, 0, 0), buffer.tensor, True, lambda filled: pytest.fail("it is not whole"))
    inbox.begin(frame_of(8, 16, 30))
    if done:
        inbox.filled(frame_of(8, 16, 30))
    with pytest.raises(PayloadError, match=f"rank 2 sends {said}"):
        inbox.accept(frame_of(start, stop, 30), memoryview(b"\1" * (stop - start)))
    assert not buffer.tensor.any()
    for begin, end in [(0, 8), (16, 24)]:
        inbox.accept(frame_of(begin, end, 30), memoryview(b"\1" * 8))
    assert inbox.waits_for(Key(0, 0, 0))


def test_chunks_of_one_message_must_agree_on_its_length() -> None:
    inbox = Inbox(2, LIMIT_BYTES, 8)
    inbox.begin(frame_of(8, 16, 30))
    with pytest.raises(PayloadError, match=r"rank 2 sends 31 bytes .* where 30 are due"):
        inbox.begin(frame_of(0, 8, 31))


def test_nothing_is_written_after_clear() -> None:
    inbox, key, buffer = Inbox(2, LIMIT_BYTES), Key(0, 0, 0), torch.zeros(10, dtype=torch.uint8)
    inbox.expect(key, buffer, True, lambda filled: None)
    assert inbox.asked
    assert inbox.waits_for(key)
    inbox.clear()
    send(inbox, key, message(key, 10), 0, 10)
    assert not buffer.any()
    assert not inbox.asked


@pytest.mark.parametrize("any_order_bytes", [None, 8])
@pytest.mark.parametrize("early", [False, True])
def test_it_tells_when_the_first_byte_of_a_message_came_and_the_last(
    any_order_bytes: int | None, early: bool
) -> None:
    heard: list[tuple[Key, float, float]] = []
    inbox, key = Inbox(2, LIMIT_BYTES, any_order_bytes), Key(3, 1, 2)
    buffer, data = torch.zeros(20, dtype=torch.uint8), message(key, 20)
    inbox.hear(lambda *told: heard.append(told))
    if not early:
        inbox.expect(key, buffer, True, lambda filled: None)
    before_s = time.perf_counter()
    send(inbox, key, data, 0, 8)
    between_s = time.perf_counter()
    send(inbox, key, data, 8, 16)
    assert not heard
    send(inbox, key, data, 16, 20)
    ((told, first_s, last_s),) = heard
    assert told == key
    assert before_s <= first_s <= between_s <= last_s <= time.perf_counter()
    if early:
        inbox.expect(key, buffer, True, lambda filled: None)
    assert len(heard) == 1


def test_what_had_begun_before_anybody_listened_is_not_told() -> None:
    inbox, key = Inbox(2, LIMIT_BYTES), Key(0, 0, 0)
    send(inbox, key, message(key, 20), 0, 8)
    inbox.hear(lambda *told: pytest.fail("when it began to come is not known"))
    send(inbox, key, message(key, 20), 8, 20)
    inbox.hear(None)
    other = key._replace(unit=1)
    send(inbox, other, message(other, 9), 0, 9)
