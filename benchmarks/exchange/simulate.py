"""Algorithms on many ranks: the same programs, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from benchmarks.exchange.records import Simulated
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, Algorithm
from compressa.collectives.base import Program
from compressa.collectives.cost import Link
from compressa.collectives.dense import DenseValues
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.errors import CompressaError
from compressa.testing.rank import compute_now
from compressa.transports.loopback import Loopback

RANKS = tuple(2**power for power in range(1, 11))
LINK = Link(message_s=1e-4, byte_s=8e-8)
"""About that of 100 Mbit/s; sums are free."""

_ELEMS = 16 * 1024
_CPU = torch.device("cpu")
_MOST_MESSAGES, _MOST_BYTES = 40_000, 1 << 28  # in all, and under way: for seconds, and memory


def simulated(name: str) -> Iterator[Simulated]:
    """Run an algorithm for growing numbers of ranks, as far as its messages are not too many.

    Args:
        name: Of `ALGORITHMS`.
    """
    algorithm, size_bytes = ALGORITHMS[name], 4 * _ELEMS
    for ranks in RANKS:
        stages = algorithm.stages(size_bytes, ranks)
        messages = sum(stage.messages for stage in stages)
        at_once_bytes = max(stage.port_bytes for stage in stages)
        if ranks * messages > _MOST_MESSAGES or ranks * at_once_bytes > _MOST_BYTES:
            return
        yield Simulated(
            method=name,
            hosts=ranks,
            size_bytes=size_bytes,
            message_s=LINK.message_s,
            byte_s=LINK.byte_s,
            took_s=_took_s(algorithm, ranks),
            predicted_s=LINK.time_s(stages),
        )


def _took_s(algorithm: Algorithm, ranks: int) -> float:
    """Sum rank + 1 over the ranks, see that it is right, and return the virtual time."""
    loopback = Loopback(ranks, message_s=LINK.message_s, bandwidth_bytes_per_s=1 / LINK.byte_s)
    values = [torch.full((_ELEMS,), float(rank + 1)) for rank in range(ranks)]

    def program(rank: int) -> Program[None]:
        group, span = RankGroup.everyone(rank, ranks), Span(0, _ELEMS)
        return algorithm.all_reduce(DenseValues(values[rank]), span, group, Scratch(_CPU))

    with _one_thread():
        _run(loopback, program)
    if not all(bool((value == ranks * (ranks + 1) / 2).all()) for value in values):
        raise ArithmeticError(f"{ranks} ranks have summed wrongly")
    return loopback.clock.now_s


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have torch copy by itself: to wake its threads takes longer than the copies."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(loopback: Loopback, program: Callable[[int], Program[None]]) -> None:
    clock, ended = loopback.clock, set[int]()

    def post(event: Callable[[], None]) -> None:
        clock.at(clock.now_s, event)

    def finished(rank: int, error: BaseException | None) -> None:
        if error is not None:
            raise error
        ended.add(rank)

    for rank, transport in enumerate(loopback.transports):
        driver = Driver(transport, compute_now, post, lambda: clock.now_s, deadline_s=math.inf)
        task = Task(0, "simulated", 0, program(rank), partial(finished, rank))
        clock.at(0.0, partial(driver.start, task))
    clock.run()
    if len(ended) < loopback.size:
        raise CompressaError(f"{loopback.size - len(ended)} ranks wait for ever")
