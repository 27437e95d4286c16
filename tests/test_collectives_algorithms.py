"""Every all-reduce algorithm on a virtual clock: the sum, the same bits everywhere, the cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.collectives import Compute, Program
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, AllReduce, segmented
from compressa.collectives.cost import Link
from compressa.collectives.dense import DenseValues
from compressa.collectives.scratch import Scratch
from compressa.collectives.team import Team
from compressa.engine.driver import Driver, Task
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.loopback import Loopback

CPU = torch.device("cpu")


def run_all(loopback: Loopback, program: Callable[[int], Program[Any]]) -> list[Any]:
    """Run one program per rank; return what each ended with ("unfinished" if it did not)."""
    ends: list[Any] = ["unfinished"] * loopback.size
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


def sum_all(loopback: Loopback, all_reduce: AllReduce, values: list[torch.Tensor]) -> None:
    """Sum in place."""
    size = loopback.size

    def program(rank: int) -> Program[None]:
        span = Span(0, values[rank].numel())
        team = Team.everyone(rank, size)
        return all_reduce(DenseValues(values[rank]), span, team, Scratch(CPU))

    assert run_all(loopback, program) == [None] * size


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("segments", [1, 3])
@settings(max_examples=25)
@given(size=st.integers(1, 17), elems=st.sampled_from([0, 1, 15, 16, 17, 1000]), seed=st.integers())
def test_integers_are_summed_exactly(
    name: str, segments: int, size: int, elems: int, seed: int
) -> None:
    random = generator(seed % 1000)
    values = [torch.randint(-1000, 1000, (elems,), generator=random) for _ in range(size)]
    due = torch.stack(values).sum(0)
    sum_all(Loopback(size), segmented(ALGORITHMS[name], segments), values)
    assert all(torch.equal(value, due) for value in values)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [*range(2, 10), 16, 61])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_ends_with_the_same_bits(name: str, size: int, dtype: torch.dtype) -> None:
    random = generator(size)
    values = [torch.randn(777, generator=random).to(dtype) for _ in range(size)]
    exact = torch.stack(values).double().sum(0)
    scale = torch.stack(values).double().abs().sum(0)
    sum_all(Loopback(size), ALGORITHMS[name].all_reduce, values)
    assert all(torch.equal(value, values[0]) for value in values)
    ulp = torch.finfo(dtype).eps
    assert ((values[0].double() - exact).abs() <= size * ulp * scale).all()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 64])
def test_it_takes_as_long_as_its_stages_say(name: str, size: int) -> None:
    elems, message_s, byte_s = 16 * 1024, 1e-3, 1e-6
    values = [torch.full((elems,), rank, dtype=torch.int32) for rank in range(size)]
    loopback = Loopback(size, message_s=message_s, bandwidth_bytes_per_s=1 / byte_s)
    sum_all(loopback, ALGORITHMS[name].all_reduce, values)
    # On the wire each message has a header, too.
    stages = ALGORITHMS[name].stages(4 * elems, size)
    headers_s = sum(stage.messages for stage in stages) * FRAME_HEADER_BYTES * byte_s
    due_s = Link(message_s, byte_s).time_s(stages) + headers_s
    assert loopback.clock.now_s == pytest.approx(due_s, rel=0.02)
