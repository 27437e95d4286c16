"""`python -m benchmarks hogwild`: how updates of one memory without locks scale, on this machine.

A sparse linear model, by one process and by more, in turns. Each takes as many steps of SGD, of
batches of examples with few words of many.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Annotated, ClassVar, Literal

import torch
import torch.distributed as dist
import typer
from pydantic import AwareDatetime, Field, PositiveInt
from torch import nn

import compressa
from benchmarks.hosts import Processors
from compressa.machine import now
from compressa.testbed import open_testbed
from harness import records
from harness.ranks import Ranks
from harness.records import NotNegative, Positive
from harness.runner import JsonFile, Shown, Update, carry_out
from harness.start import started_ranks
from harness.tables import table_of
from harness.wire import Wire

OF_EXAMPLE, BATCH, RATE = 20, 32, 0.8


class Row(records.Row):
    """Turns of as many processes.

    `steps_per_s` is what all of them took in a second, and `left` the share of the variance that
    the model which they made together leaves, both by turn. `load` is the share of the machine's
    processors that were busy.
    """

    processes: PositiveInt
    steps_per_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    left: tuple[NotNegative, ...]
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return (self.processes,)


class Header(records.Header):
    """Where, when and how; `steps` are those of each process in a turn."""

    format: Literal["compressa.bench.hogwild"] = "compressa.bench.hogwild"
    threads_per_rank: Literal[1] = 1
    words: PositiveInt
    steps: PositiveInt


class HogwildMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks hogwild"

    header: Header
    rows: list[Row] = Field(default_factory=list)


class HogwildBench:
    """Measures one process, two, and so on up to the number of processors, in turns.

    Args:
        turns: Of each number of processes, that are timed; one more comes before.
        steps: Of each process in a turn.
        words: How many parameters the model has.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, turns: int, steps: int, words: int) -> None:
        header = Header.here({"torch": version("torch")}, words=words, steps=steps)
        self.found, self._turns = HogwildMeasurement(header=header), turns

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        most = max(2, len(os.sched_getaffinity(0)))
        yield f"starting {most} processes"
        with (
            open_testbed(most, "unshaped", kind="loopback", self_check=False) as bed,
            started_ranks(bed, "benchmarks.hogwild:Training") as ranks,
        ):
            yield "training"
            counts = range(1, most + 1)
            turns: dict[int, list[_Turn]] = {count: [] for count in counts}
            for _ in range(self._turns + 1):
                for count in counts:
                    turns[count].append(self._turn(ranks, count))
            self.found.rows.extend(_row(count, timed) for count, (_, *timed) in turns.items())

    def _turn(self, ranks: Ranks, processes: int) -> _Turn:
        header, processors = self.found.header, Processors()
        told = ranks.ask("train", processes=processes, steps=header.steps, words=header.words)
        taken = processes * header.steps
        return _Turn(taken / told["seconds"], told["left"], processors.load())


@dataclass(frozen=True)
class _Turn:
    """What all processes did."""

    steps_per_s: float
    left: float
    load: float


def _row(processes: int, turns: list[_Turn]) -> Row:
    return Row(
        processes=processes,
        steps_per_s=tuple(turn.steps_per_s for turn in turns),
        left=tuple(turn.left for turn in turns),
        load=median(turn.load for turn in turns),
        timestamp=now(),
    )


class Training:
    """What a rank can be asked for; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        pass

    def train(self, processes: int, steps: int, words: int) -> dict[str, float]:
        """Have the first ranks train a new model; tell how long it took, and how good it is."""
        truth = torch.randn(words, generator=torch.Generator().manual_seed(0))
        model = nn.EmbeddingBag(words, 1, mode="sum", sparse=True)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        made, seconds = torch.Generator().manual_seed(1 + dist.get_rank()), 0.0
        with compressa.attach(model, optimizer, {"strategy": "hogwild"}) as strategy:
            strategy.sync()
            if dist.get_rank() < processes:
                begun_s = time.perf_counter()
                for _ in range(steps):
                    chosen, values = _batch(truth, made)
                    loss = (strategy.model(chosen) - values).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    strategy.step()
                seconds = time.perf_counter() - begun_s
            strategy.sync()
            with torch.no_grad():
                chosen, values = _batch(truth, torch.Generator().manual_seed(0))
                left = (model(chosen) - values).square().mean() / values.square().mean()
        return {"seconds": seconds, "left": float(left)}


def _batch(truth: torch.Tensor, made: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words of some examples, and what is true of them."""
    words = torch.randint(len(truth), (BATCH, OF_EXAMPLE), generator=made)
    return words, truth[words].sum(1, keepdim=True)


def shown(measured: HogwildMeasurement) -> Shown:
    """Yield a table, and how steps scale."""
    columns: dict[str, Callable[[Row], str]] = {
        "processes": lambda row: str(row.processes),
        "steps a second": lambda row: f"{median(row.steps_per_s):,.0f}",
        "of one": lambda row: f"{scales(measured, row.processes):.2f}",
        "variance left": lambda row: f"{median(row.left):.1%}",
    }
    yield table_of("Medians of turns", measured.rows, columns)


def scales(measured: HogwildMeasurement, processes: int) -> float:
    """Return how many times the steps of one process as many take in the same time."""
    steps_per_s = {row.processes: median(row.steps_per_s) for row in measured.rows}
    return steps_per_s[processes] / steps_per_s[1]


Turns = Annotated[int, typer.Option(min=1, help="That are timed, of each number of processes.")]
Steps = Annotated[int, typer.Option(min=1, help="Of each process in a turn.")]
Words = Annotated[int, typer.Option(min=100, help="How many parameters the model has.")]


def hogwild(
    turns: Turns = 7,
    steps: Steps = 5000,
    words: Words = 100_000,
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Train a sparse linear model in shared memory, by one process and by more, in turns.

    Takes a minute.
    """
    carry_out(HogwildBench(turns, steps, words), shown, json_file, update)
