"""Outbox: every byte leaves once, in order within its message, the most urgent message first."""

from __future__ import annotations

import random
from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.transports.base import Key
from compressa.transports.frames import Kind
from compressa.transports.outbox import Outbox, OutgoingFrame

EPOCH = 7

lengths = st.integers(1, 300)
priorities = st.tuples(st.integers(0, 2), st.integers(0, 3))
# A message to push, or None to take a frame.
events = st.lists(st.one_of(st.tuples(lengths, priorities), st.none()), max_size=60)


def content(unit: int, length: int) -> torch.Tensor:
    return (torch.arange(length) * 7 + unit * 31).to(torch.uint8)


@settings(max_examples=150)
@given(events=events, chunk=st.integers(1, 128))
def test_every_byte_leaves_once_and_the_most_urgent_first(
    events: list[tuple[int, tuple[int, int]] | None], chunk: int
) -> None:
    outbox = Outbox(EPOCH, chunk)
    waiting: dict[int, tuple[int, int]] = {}
    finished: list[int] = []
    pushed: list[torch.Tensor] = []
    received: list[bytes] = []

    def take() -> None:
        item = outbox.next_frame()
        frame, data = item.frame, item.data
        unit = frame.key.unit
        # Urgency first, then age: units are numbered in the order in which they were pushed.
        assert (waiting[unit], unit) == min((priority, age) for age, priority in waiting.items())
        assert (frame.kind, frame.epoch) == (Kind.DATA, EPOCH)
        assert frame.message_bytes == pushed[unit].numel()
        assert frame.offset_bytes == len(received[unit])
        assert 0 < frame.data_bytes == len(data) <= chunk
        received[unit] += data
        last = len(received[unit]) == pushed[unit].numel()
        item.message.handed_over()
        assert (unit in finished) == last
        if last:
            del waiting[unit]

    for event in events:
        if event is not None:
            length, priority = event
            unit = len(pushed)
            pushed.append(content(unit, length))
            received.append(b"")
            waiting[unit] = priority
            outbox.push(Key(0, unit, 0), pushed[unit], priority, partial(finished.append, unit))
        elif outbox:
            take()
    while outbox:
        take()
    assert not outbox
    assert sorted(finished) == list(range(len(pushed)))
    assert outbox.messages == len(pushed)
    for sent, got in zip(pushed, received, strict=True):
        assert sent.numpy().tobytes() == got


def test_a_frame_is_the_messages_own_memory() -> None:
    outbox, data = Outbox(EPOCH, 10), torch.zeros(25, dtype=torch.uint8)
    outbox.push(Key(0, 0, 0), data, (0, 0), lambda: None)
    views = [outbox.next_frame().data for _ in range(3)]
    data[:] = torch.arange(25)
    assert b"".join(views) == bytes(range(25))


@settings(max_examples=50)
@given(frames=st.integers(1, 6), order=st.randoms(use_true_random=False))
def test_a_message_is_sent_once_all_its_frames_are_whichever_is_the_last(
    frames: int, order: random.Random
) -> None:
    outbox, finished = Outbox(EPOCH, 10), list[int]()
    for unit in range(2):
        data = content(unit, 10 * frames - 3)
        outbox.push(Key(0, unit, 0), data, (0, unit), partial(finished.append, unit))
    under_way: list[OutgoingFrame] = []
    unsent = [frames, frames]
    while outbox or under_way:
        if outbox and (not under_way or order.random() < 0.6):
            under_way.append(outbox.next_frame())
            continue
        item = under_way.pop(order.randrange(len(under_way)))
        unit = item.frame.key.unit
        assert unit not in finished
        item.message.handed_over()
        unsent[unit] -= 1
        assert (unit in finished) == (not unsent[unit])
    assert sorted(finished) == [0, 1]


@settings(max_examples=50)
@given(
    messages=st.lists(st.tuples(lengths, priorities), min_size=1, max_size=4),
    turns=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=20),
)
def test_frames_given_back_are_taken_again_as_if_they_had_not_been(
    messages: list[tuple[int, tuple[int, int]]], turns: list[tuple[int, int]]
) -> None:
    outbox, plain = Outbox(EPOCH, 10), Outbox(EPOCH, 10)
    for unit, (length, priority) in enumerate(messages):
        for box in (outbox, plain):
            box.push(Key(0, unit, 0), content(unit, length), priority, lambda: None)
    for count, kept in [*turns, (200, 200)]:
        taken = [outbox.next_frame() for _ in range(count) if outbox]
        for item in reversed(taken[kept:]):
            outbox.give_back(item)
        for item in taken[:kept]:
            again = plain.next_frame()
            assert (item.frame, bytes(item.data)) == (again.frame, bytes(again.data))
        assert outbox.messages == plain.messages
    assert not outbox
    assert not plain


def test_what_is_forgotten_is_never_sent() -> None:
    outbox = Outbox(EPOCH, 10)
    outbox.push(Key(0, 0, 0), content(0, 30), (0, 0), lambda: None)
    outbox.next_frame()
    outbox.clear()
    assert not outbox
    assert outbox.messages == 0
