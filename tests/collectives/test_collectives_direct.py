"""Sums by direct messages on a virtual clock: their time, and what a lost rank does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from compressa.collectives import Compute, DenseValues, Program, round_robin
from compressa.collectives.accumulator import Span
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.errors import PeerLost
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback


def run_all(
    loopback: Loopback, program: Callable[[int], Program[Any]]
) -> list[BaseException | str | None]:
    """Run one program per rank; return what each ended with ("unfinished" if it did not)."""
    ends: list[BaseException | str | None] = ["unfinished"] * loopback.size
    clock = loopback.clock

    def compute(task: Task, operation: Compute, done: Callable[[Any, None], None]) -> None:
        done(operation.work(), None)

    def post(event: Callable[[], None]) -> None:
        clock.at(clock.now_s, event)

    for rank, transport in enumerate(loopback.transports):
        driver = Driver(transport, compute, post, lambda: clock.now_s, 60.0)
        transport.failed = driver.fail
        task = Task(0, "u", 0, program(rank), partial(ends.__setitem__, rank))
        clock.at(0.0, partial(driver.start, task))
    clock.run()
    return ends


def noted(program: Program[Any], note: Callable[[Any], object]) -> Program[Any]:
    """Carry a program out; note what it asks for."""
    answer = None
    while True:
        try:
            operation = program.send(answer)
        except StopIteration as end:
            return end.value
        note(operation)
        answer = yield operation


def reduce_all(loopback: Loopback, values: list[torch.Tensor]) -> list[Any]:
    size = loopback.size

    def program(rank: int) -> Program[None]:
        total, group = DenseValues(values[rank]), RankGroup.everyone(rank, size)
        return round_robin.all_reduce(total, total.span, group, Scratch(torch.device("cpu")))

    return run_all(loopback, program)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("message_s", [0.0, 1e-3])
def test_time_is_that_of_the_cost_formula(size: int, message_s: float) -> None:
    """Two phases of (P-1) a + n (P-1)/P b, and one latency each, since those overlap."""
    elems, bandwidth, latency_s = 16 * size * 400, 1e6, 5e-3
    loopback = Loopback(
        size, latency_s=latency_s, message_s=message_s, bandwidth_bytes_per_s=bandwidth
    )
    reduce_all(loopback, [torch.ones(elems) for _ in range(size)])
    wire_bytes = 4 * elems * (size - 1) / size
    due_s = 2 * ((size - 1) * message_s + wire_bytes / bandwidth + latency_s)
    assert loopback.clock.now_s == pytest.approx(due_s, rel=0.02)
    headers_s = 2 * (size - 1) * FRAME_HEADER_BYTES / bandwidth
    assert loopback.clock.now_s == pytest.approx(due_s + headers_s, rel=1e-9)


def test_lost_peer_ends_the_wait_of_all_others() -> None:
    loopback = Loopback(4, bandwidth_bytes_per_s=1e4)
    loopback.clock.at(0.01, lambda: loopback.lose(2))
    ends = reduce_all(loopback, [torch.ones(1000) for _ in range(4)])
    for rank in (0, 1, 3):
        error = ends[rank]
        assert isinstance(error, PeerLost)
        assert error.rank == 2
        assert "rank 2 is lost" in str(error)
    assert ends[2] == "unfinished"


@pytest.mark.parametrize("elems", [0, 1, 15, 16, 17, 1000, 4097])
@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64])
def test_parts_of_a_span_are_an_aligned_partition(elems: int, shards: int) -> None:
    parts = Span(0, elems).cut(shards, 16)
    edges = [parts[0].start, *(part.stop for part in parts)]
    assert [part.start for part in parts] == edges[:-1]
    assert len(edges) == shards + 1
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (0, elems)
    assert all(edge % 16 == 0 or edge == elems for edge in edges)
