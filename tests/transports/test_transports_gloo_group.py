"""The tests' own transport, which stands in for NCCL's, refuses what does not fit."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _gloo_group import GlooGroupTransport
from _ranks import Group
from _reacting import Answers
from _transport_calls import message, opened, wrong_length
from _until import until

from compressa.collectives.base import Exchange
from compressa.errors import PayloadError
from compressa.transports.base import Key
from compressa.transports.frames import Frame

pytestmark = pytest.mark.ranks

FRAME_HEADER_BYTES = 48


def flip_each_header_bit(*, kind: str) -> list[int]:
    """Rank 0 flips another bit of the header in each message; return those not refused."""
    write, taken = Frame.write, []

    def broken(self: Frame, buffer: Any, data: memoryview) -> None:
        write(self, buffer, data)
        buffer[self.key.step // 8] ^= 1 << self.key.step % 8

    with opened(kind) as (transport, _):
        for bit in range(8 * FRAME_HEADER_BYTES):
            answers, key = Answers(), Key(bit, 0, 0)
            _exchange_broken(transport, key, answers, broken)
            if not isinstance(answers.wait(key), PayloadError):
                taken.append(bit)
        dist.barrier()
    return taken


def _exchange_broken(transport: Any, key: Key, answers: Answers, broken: Any) -> None:
    """Rank 0 sends rank 1 nine bytes behind a broken header."""
    exchange = Exchange({}, {0: torch.zeros(9, dtype=torch.uint8)}, False)
    if transport.rank == 0:
        exchange = Exchange({1: message(0, 1, 0, 9)}, {}, True, {1: 9})
    with mock.patch.object(Frame, "write", broken if transport.rank == 0 else Frame.write):
        transport.exchange(key, exchange, 0, answers.done(key))


def refused_at_once() -> bool:
    """Rank 0 sends nonsense, and both look late; does rank 1's error hold any frames?"""
    late = GlooGroupTransport._when_done

    def broken(self: Frame, buffer: Any, data: memoryview) -> None:
        write(self, buffer, data)
        buffer[0] ^= 1

    def when_done(self: GlooGroupTransport, work: dist.Work, *rest: Any) -> None:
        until(work.is_completed)
        late(self, work, *rest)

    write, key, answers = Frame.write, Key(0, 0, 0), Answers()
    with opened("gloo-group") as (transport, _):
        with mock.patch.object(GlooGroupTransport, "_when_done", when_done):
            _exchange_broken(transport, key, answers, broken)
        result = answers.wait(key)
        dist.barrier()
    assert transport.rank == 0 or isinstance(result, PayloadError), result
    return isinstance(result, PayloadError) and result.__traceback__ is not None


def test_a_shorter_group_message_is_refused(two: Group) -> None:
    said = two.run(wrong_length, kind="gloo-group", sent=99, due=100)[1]
    assert "rank 0 sent 99 bytes where 100 are due" in said


def test_no_bit_of_a_group_calls_header_may_be_another(two: Group) -> None:
    every_bit = list(range(8 * FRAME_HEADER_BYTES))
    assert two.run(flip_each_header_bit, kind="gloo-group") == [every_bit, []]


def test_a_refused_frame_does_not_keep_its_call(two: Group) -> None:
    # Each call keeps the group's connections, and an error with a traceback its frames.
    assert two.run(refused_at_once) == [False, False]
