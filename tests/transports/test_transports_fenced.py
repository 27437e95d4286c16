"""Messages that leave an emulated GPU by fences, over TCP's compiled loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from unittest import mock

import pytest
import torch
from _staged import closed_at_once, staged_transports
from emulated_streams import DEVICE, UNFINISHED, Stream
from emulated_torch import emulated_torch, on_cpu, on_gpu

from compressa.collectives.base import Exchange
from compressa.errors import CompressaError, TransportError
from compressa.transports.base import Key, Received
from compressa.transports.lowered import AVAILABLE
from compressa.transports.reactor import Reactor
from compressa.transports.staged import Staged

if AVAILABLE:
    from compressa.transports.lowered.fence import Fence, Fences

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the compiled loop is for 64-bit Linux")

PATIENCE_S = 10.0


class Ends:
    """Two ranks, driven by turns by who calls; and the fences that they have made."""

    def __init__(self, transports: list[Staged], reactors: list[Reactor]) -> None:
        self.transports, self.reactors = transports, reactors
        self.received: dict[tuple[int, int], Received | CompressaError] = {}
        for transport, reactor in zip(transports, reactors, strict=True):
            transport.attach(reactor)

    def exchange(self, rank: int, unit: int, size: int) -> None:
        """Send so many bytes, each the number of the rank and one, and expect as many."""
        buffer = on_gpu(torch.full((size,), rank + 1, dtype=torch.uint8))
        room = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        exchange = Exchange({1 - rank: buffer}, {1 - rank: room}, True, {1 - rank: size})
        done = self.received.setdefault
        key = Key(1, unit, 0)
        self.transports[rank].exchange(key, exchange, 0, lambda got: done((rank, unit), got))

    def drive(self, count: int, seconds: float = PATIENCE_S) -> None:
        """Go on until so many exchanges are done, or so long."""
        end_s = time.monotonic() + seconds
        while len(self.received) < count and time.monotonic() < end_s:
            for reactor in self.reactors:
                reactor.run_once(0.01)


@pytest.fixture(params=[None, 1])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    failures: list[CompressaError] = []
    with emulated_torch(request.param), ExitStack() as stack:
        stream = torch.cuda.current_stream()
        reactors = [stack.enter_context(closing(Reactor())) for _ in range(2)]
        transports = staged_transports([stream, stream], failures)
        stack.enter_context(closed_at_once(transports, 5.0))
        yield Ends(transports, reactors)
    assert not failures


def test_each_piece_leaves_by_a_fence_and_arrives_whole(ends: Ends) -> None:
    made: list[Fence] = []
    new = Fences.new

    def noted(fences: Fences) -> Fence:
        made.append(new(fences))
        return made[-1]

    with mock.patch.object(Fences, "new", noted):
        for rank in range(2):
            ends.exchange(rank, 0, 250)
            ends.exchange(rank, 1, 0)  # of which nothing is sent
        ends.drive(4)
    torch.cuda.current_stream().synchronize()
    for rank in range(2):
        got = ends.received[rank, 0]
        assert not isinstance(got, CompressaError)
        assert torch.equal(on_cpu(got[1 - rank]), torch.full((250,), 2 - rank, dtype=torch.uint8))
    assert len(made) == 2 * (3 + 1)
    for transport in ends.transports:
        transport._out.synchronize()
        assert not transport._parts
        assert not transport._first
        assert not transport._on_device
    assert all(fence.over for fence in made)


def test_a_gpu_that_comes_to_a_fence_after_a_failure_sends_nothing(ends: Ends) -> None:
    before = Stream(eager=False)
    released: list[None] = []
    before.give(lambda: None if released else UNFINISHED)
    torch.cuda.current_stream().wait_event(before.record_event())
    ends.exchange(0, 0, 250)
    first, second = ends.transports
    sent = first.traffic.sent_bytes
    ends.drive(1, 0.1)
    first.fail(TransportError("a rank is lost"))
    second.fail(TransportError("a rank is lost"))
    released.append(None)
    first._out.synchronize()
    ends.drive(1, 0.1)
    assert not ends.received
    assert first.traffic.sent_bytes == sent
