"""The engine's two streams, emulated: what is encoded waits for no exchange, and reads no rubbish.

Another rank has the same gradients, so the mean is what this rank's payload decodes to. What is due
is what the engine leaves if the GPU does everything at once. Without any one of the events that
order the streams, or without what tells torch's pools of them, some order of their work leaves
something else.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import count
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_streams import DEVICE, Emulation, Stream, stream_context
from emulated_torch import CudaTensor, emulated_torch, on_cpu, on_gpu
from engines import engine_over
from test_engine_nccl import CALLS_TO_MEET, COMPRESSORS, NAMES, Training, training_with
from torch import nn

from compressa.codecs import DGC, Int8, TopK
from compressa.compressor import Compressor
from compressa.config import parameter_infos
from compressa.engine import driver
from compressa.engine.arrivals import Arrivals
from compressa.engine.device_stream import CudaDeviceStream, Ticket
from compressa.engine.driver import Driver
from compressa.transports.nccl import NcclTransport
from compressa.wrappers import ErrorFeedback

STEPS = 3
STREAMS = 6  # at most, in the order in which they are made
ALL = frozenset(range(STREAMS))
ORDERS = [frozenset[int](), *(frozenset({i}) for i in ALL), *(ALL - {i} for i in ALL)]
"""Which streams do at once what they are given; the others do it when somebody waits."""
GATHER, SCATTER = {"kind": "all_gather"}, {"kind": "scatter_reduce"}
CASES: dict[str, tuple[Compressor, dict[str, Any]]] = {
    "dense": COMPRESSORS[0],
    "gathered": (ErrorFeedback(codec=Int8(block=32)), GATHER),
    "scattered": (ErrorFeedback(codec=Int8(block=32)), SCATTER),
    "sparse": (ErrorFeedback(codec=TopK(density=0.1)), GATHER),
    "of any length": (ErrorFeedback(codec=DGC(density=0.1)), GATHER),
}

Numbers = dict[str, torch.Tensor]


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("case", COMPRESSORS)
def test_a_unit_is_encoded_while_the_last_one_is_on_the_wire(
    case: tuple[Compressor, dict[str, Any]], held: int
) -> None:
    with training_with(*case) as training:
        training.group.held = {CALLS_TO_MEET + held}
        tickets = training.submit(NAMES)
        for ticket in tickets.values():
            ticket.result(10.0)
        streams = training.engine.device_stream
        assert isinstance(streams, CudaDeviceStream)
        assert streams._ahead.record_event().query(), "what is encoded waits for nothing else"
        assert not streams.stream.record_event().query(), "what was received waits for the exchange"


def train(training: Training) -> Numbers:
    """Train on gradients whose maker waits for no result; return the last means, and the state."""
    engine, random = training.engine, torch.Generator().manual_seed(0)
    with stream_context(Stream()):
        for step in range(STEPS):
            made: Numbers = {}
            tickets: dict[str, Ticket] = {}
            torch.empty(8, device=DEVICE)  # of the memory that was let go
            for name in sorted(NAMES, key=training.last.__getitem__):
                made[name] = 2.0 * on_gpu(torch.randn(32, 32, generator=random))
                tickets[name] = engine.submit({name: made[name]}, step=step)
                training.complete(tickets)  # so that the next gets memory that is let go
    engine.wait(list(tickets.values()))
    engine.settle()
    torch.cuda.current_stream().synchronize()
    return {name: on_cpu(x) for name, x in (made | engine.state.vectors).items()}


def trained(case: str, eager: frozenset[int]) -> Numbers:
    """Train on streams of which some are eager."""
    eagerness = map(eager.__contains__, count())
    drawn = mock.patch.object(Emulation, "draw_eager", side_effect=eagerness)
    # Who asks whether a stream has come somewhere has the emulated one go there.
    unasked = mock.patch.object(CudaDeviceStream, "check_received")
    with emulated_torch(), drawn, unasked:
        training = Training(*CASES[case])
        try:
            return train(training)
        finally:
            training.engine.close()


@cache
def due(case: str) -> Numbers:
    return trained(case, ALL)


def is_due(case: str, eager: frozenset[int]) -> bool:
    """Whether a training leaves what is due; an error leaves nothing."""
    try:
        found = trained(case, eager)
    except Exception:
        return False
    return all(torch.equal(x, found[name]) for name, x in due(case).items())


@pytest.mark.parametrize("case", CASES)
def test_no_order_of_the_streams_work_changes_a_bit(case: str) -> None:
    assert [set(eager) for eager in ORDERS if not is_due(case, eager)] == []


def take_unmarked(arrivals: Arrivals, index: int) -> Any:
    return take(arrivals, index)[0], set()


def go_on_at_once(driver: Driver, task: Any) -> None:
    task.ahead = False


def forget(transport: NcclTransport, operation: Any) -> None:
    transport._under_way.pop(id(operation))


take = Arrivals.take
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "gradients are read before they are made": (Arrivals, "take", take_unmarked),
    "payloads are sent before they are made": (
        driver,
        "at",
        lambda streams, task: nullcontext(),
    ),
    "payloads are decoded before they have come": (NcclTransport, "land", forget),
    "residuals are read before they are written": (CudaDeviceStream, "catch_up", lambda self: None),
    "gradients are somebody else's before they are read": (
        CudaTensor,
        "record_stream",
        lambda self, stream: None,
    ),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_each_event_is_needed(broken: tuple[Any, str, Any]) -> None:
    owner, name, instead = broken
    for case in CASES:
        due(case)
    with mock.patch.object(owner, name, instead):
        assert any(not is_due(case, eager) for case in CASES for eager in ORDERS)


def alone() -> torch.Tensor:
    """Train a step in a world of one; return the mean as whoever waits for it finds it."""
    with emulated_torch():
        infos = parameter_infos(nn.Linear(32, 32, bias=False))
        engine = engine_over(infos, {"weight": Int8()}, device_stream=CudaDeviceStream(DEVICE))
        gradient = on_gpu(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))
        engine.wait([engine.submit({"weight": gradient}, step=0)])
        torch.cuda.current_stream().synchronize()
        engine.close()
        return on_cpu(gradient)


def test_what_is_never_exchanged_is_waited_for_too() -> None:
    found = alone()
    with mock.patch.object(Driver, "_join", go_on_at_once):
        assert not torch.equal(alone(), found)
    assert torch.equal(alone(), found)
