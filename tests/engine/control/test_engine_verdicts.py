"""Who ends its data in order, and is still there, is about to say why: its word is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compressa.engine.control.inquest import told
from compressa.engine.control.verdicts import Verdicts
from compressa.engine.control.waits import Activity
from compressa.errors import CompressaError, PayloadError, PeerLost
from compressa.transports.mesh import has_left

WORD_S = 1.5  # a message that was lost on the way is sent again after that
CORRUPT = PayloadError("a frame from rank 1 to rank 0 is not what was sent")


class Beside:
    """Verdicts of rank 1 of 2, and what it knows of rank 0 over the control channel."""

    def __init__(self) -> None:
        self.channel = SimpleNamespace(
            rank=1, size=2, gone=set(), lost={}, heard_s={0: 0.0}, absence=None
        )
        notes = SimpleNamespace(send=lambda *_: None, send_all=lambda *_: None)
        settings = SimpleNamespace(heartbeat_s=0.1, silence_s=5.0)
        anything: list[Any] = [self.channel, notes, settings]
        self.verdicts = Verdicts(*anything, lambda: Activity("in step 3", 1.0, True))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        timer = Timer(seconds, event)
        timer.daemon = True
        timer.start()


def verdict_of(beside: Beside, error: CompressaError) -> tuple[CompressaError, float]:
    began_s = time.monotonic()
    return beside.verdicts.verdict(error), time.monotonic() - began_s


def test_the_word_of_who_has_ended_its_data_is_waited_for() -> None:
    beside = Beside()
    note = {**told(CORRUPT, 0), "kind": "verdict"}
    beside.after(WORD_S, lambda: beside.verdicts.takers["verdict"](0, note))
    verdict, seconds = verdict_of(beside, has_left(0))
    assert str(verdict) == str(CORRUPT)
    assert seconds < WORD_S + 1.0


@pytest.mark.parametrize("known", ["gone", "lost"])
def test_nothing_is_waited_for_where_control_has_ended_too(known: str) -> None:
    beside = Beside()
    ended = {"gone": {0}, "lost": {0: PeerLost(0, "reset")}}[known]
    setattr(beside.channel, known, ended)
    verdict, seconds = verdict_of(beside, has_left(0))
    assert cast(PeerLost, verdict).rank == 0
    assert seconds < WORD_S


def test_a_word_that_does_not_come_is_not_waited_for_long() -> None:
    verdict, seconds = verdict_of(Beside(), has_left(0))
    assert cast(PeerLost, verdict).rank == 0
    assert seconds < 4.0


def test_a_link_that_breaks_promises_no_word() -> None:
    verdict, seconds = verdict_of(Beside(), PeerLost(0, "rank 0 is lost: connection reset"))
    assert cast(PeerLost, verdict).rank == 0
    assert seconds < WORD_S
