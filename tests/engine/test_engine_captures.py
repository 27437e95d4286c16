"""A user's capture of a CUDA graph, emulated: the engine takes no part in it, and breaks none."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_streams import Emulation, Event, Stream, capture
from emulated_torch import Driver, on_cpu
from test_engine_nccl import CALLS_TO_MEET, COMPRESSORS, NAMES, training_with

from compressa.errors import StateError

INT8 = COMPRESSORS[1]
LONGER_S = 0.6  # than any thread of ours waits until it looks at something again


def test_gradients_that_come_while_their_stream_is_captured_are_refused_with_advice() -> None:
    with training_with(*INT8) as training:
        before = on_cpu(training.gradients[NAMES[0]])
        with (
            capture() as broken,
            pytest.raises(StateError, match=r"captured.*make_graphed_callables.*no_sync\(\)"),
        ):
            training.submit(NAMES)
        assert broken == []
        assert torch.equal(on_cpu(training.gradients[NAMES[0]]), before)
        assert all(training.has_come(ticket) for ticket in training.submit(NAMES).values())


def broken_while_exchanges_are_under_way() -> set[str]:
    """Return which threads break a capture that begins in the middle of a step."""
    with training_with(*INT8) as training:
        training.group.held = {CALLS_TO_MEET}
        for ticket in training.submit(NAMES).values():
            ticket.result(10.0)
        with capture() as broken:
            time.sleep(LONGER_S)
        return set(broken)


def test_no_thread_is_left_to_begin_beside_a_capture() -> None:
    with training_with(*INT8) as training:
        names = [thread.name for thread in threading.enumerate()]
        workers = sum(name.startswith("compressa-codec") for name in names)
        assert workers == training.engine.session.threads


def test_what_is_still_looked_at_breaks_no_capture() -> None:
    assert broken_while_exchanges_are_under_way() == set()
    with mock.patch.object(Driver, "cuThreadExchangeStreamCaptureMode", return_value=0):
        assert broken_while_exchanges_are_under_way() >= {"compressa-watchdog", "compressa-comm"}


def test_an_engine_whose_step_is_over_calls_nothing_of_cuda() -> None:
    called: list[str] = []

    def noted(owner: type, name: str) -> Any:
        does = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            called.append(name)
            return does(*arguments)

        return mock.patch.object(owner, name, call)

    with training_with(*INT8) as training:
        training.engine.wait(list(training.submit(NAMES).values()))
        training.engine.settle()
        time.sleep(LONGER_S)
        with (
            noted(Event, "query"),
            noted(Event, "synchronize"),
            noted(Stream, "synchronize"),
            noted(Stream, "query"),
            noted(Stream, "give"),
            capture(),
        ):
            time.sleep(LONGER_S)
        assert called == []
    assert Emulation.captured is None
