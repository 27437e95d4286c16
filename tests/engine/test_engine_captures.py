"""A user's capture of a CUDA graph, emulated: the engine takes no part in it, and breaks none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from _staged import closed_at_once, staged_transports
from emulated_streams import DEVICE, Emulation, Event, Stream, capture
from emulated_torch import Driver, emulated_torch, on_cpu, on_gpu
from engines import engine_over
from nccl_twin import SIDE
from test_engine_nccl import CALLS_TO_MEET, COMPRESSORS, NAMES, training_with

from compressa.codecs import Int8
from compressa.engine.device_stream import CudaDeviceStream
from compressa.errors import CompressaError, StateError
from compressa.parameters import ParameterInfo
from compressa.wrappers import ErrorFeedback

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


def broken_while_exchanges_over_tcp_are_under_way() -> set[str]:
    """The same where what crosses the bus is sent by TCP; rank 1 comes when the capture is over."""
    compressors = dict.fromkeys(NAMES, ErrorFeedback(codec=Int8()))
    infos = [ParameterInfo(i, name, (SIDE, SIDE)) for i, name in enumerate(NAMES)]
    with emulated_torch():
        streams = [CudaDeviceStream(DEVICE) for _ in range(2)]
        pair = staged_transports([each.stream for each in streams], [])
        engines = [
            engine_over(infos, compressors, transport=transport, device_stream=stream)
            for transport, stream in zip(pair, streams, strict=True)
        ]
        given = [{name: on_gpu(torch.ones(SIDE, SIDE)) for name in NAMES} for _ in engines]
        with closed_at_once(engines):
            tickets = [engines[0].submit(given[0], step=0)]
            with capture() as broken:
                time.sleep(LONGER_S)
            tickets += [engines[1].submit(given[1], step=0)]
            try:
                for engine, ticket in zip(engines, tickets, strict=True):
                    engine.wait([ticket])
            except CompressaError:
                assert broken, "nothing else may fail"
        return set(broken)


def test_no_thread_is_left_to_begin_beside_a_capture() -> None:
    with training_with(*INT8) as training:
        names = [thread.name for thread in threading.enumerate()]
        workers = sum(name.startswith("compressa-codec") for name in names)
        assert workers == training.engine.session.threads


@pytest.mark.parametrize(
    ("broken", "threads"),
    [
        (broken_while_exchanges_are_under_way, {"compressa-watchdog", "compressa-comm"}),
        (broken_while_exchanges_over_tcp_are_under_way, {"compressa-watch"}),
    ],
    ids=["nccl", "tcp"],
)
def test_what_is_still_looked_at_breaks_no_capture(
    broken: Callable[[], set[str]], threads: set[str]
) -> None:
    assert broken() == set()
    with mock.patch.object(Driver, "cuThreadExchangeStreamCaptureMode", return_value=0):
        assert broken() >= threads


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
