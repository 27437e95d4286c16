"""`python -m benchmarks walk`: the Python calls of one step, their files, and the threads.

- *calls*: how often a Python function began, or a generator went on; those in files of compressa,
  kernels and schedulers, and all. On the training thread, what the library's functions call counts,
  and not what DDP does besides; on every other thread, all.
- *files*: in how many of these files they are.
- *changes*: how often a call comes from another thread than the call before it.

How that is found out stands in `walk_rank`; what rank 0 tells counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Annotated, ClassVar, Literal

import typer
from pydantic import AwareDatetime, Field, NonNegativeInt, PositiveInt

from compressa.errors import ConfigError
from compressa.machine import now
from compressa.testbed import open_testbed
from harness import records
from harness.records import Positive
from harness.runner import JsonFile, Shown, Update, carry_out
from harness.start import started_ranks
from harness.tables import Table, Target, Verdict, table_of, verdicts_table

ELEMS = (1 << 12, 1 << 16, 1 << 20)
"""Of the parameter: messages of 4 KiB, of 64 KiB and of 1 MiB."""

JUDGED_ELEMS = 1 << 12
"""Targets are those of this parameter's gradient, of 16 KiB."""

CALLS = Target("calls", 500, shown="{:.0f}", asked="<= {:.0f}")
FILES = Target("files", 35, shown="{:.0f}", asked="<= {:.0f}")
CHANGES = Target("changes of thread", 8, shown="{:.0f}", asked="<= {:.0f}")

_RANKS = 2
_ROWS = 16  # of the parameter, whose elements they divide


class Row(records.Row):
    """The walk of a parameter's gradient, and times of a step that nobody looks at.

    `functions` are the calls by file and function, the most frequent ones first; a file that is
    none of the library's stands in parentheses. `own` are those of the library, in so many `files`.
    `step_s` and `cpu_s` are the median time of a step, and the mean of the processor's.
    """

    elems: Annotated[int, Field(gt=0, multiple_of=_ROWS)]
    own: NonNegativeInt
    files: NonNegativeInt
    changes: NonNegativeInt
    step_s: Positive
    cpu_s: Positive
    functions: dict[str, PositiveInt]
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return (self.elems,)

    @property
    def gradient_bytes(self) -> int:
        """Of its float32."""
        return 4 * self.elems

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(self.functions.values())

    @property
    def by_file(self) -> dict[str, int]:
        """Calls by file, the most frequent ones first."""
        found: Counter[str] = Counter()
        for name, calls in self.functions.items():
            found[name.partition(": ")[0]] += calls
        return dict(found.most_common())


class Header(records.Header):
    """Where, when and how."""

    format: Literal["compressa.bench.walk"] = "compressa.bench.walk"
    threads_per_rank: Literal[1] = 1
    ranks: Literal[2] = 2


class WalkMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks walk"

    header: Header
    rows: list[Row] = Field(default_factory=list)


class WalkBench:
    """Counts the calls of steps of one parameter after the other.

    Args:
        sizes: Elements of each.

    Attributes:
        found: What was measured so far.

    Raises:
        ConfigError: A size is no multiple of 16.
    """

    def __init__(self, sizes: list[int]) -> None:
        for elems in sizes:
            if elems % _ROWS:
                raise ConfigError(f"--elems: {elems} is no multiple of {_ROWS}")
        header = Header.here({"torch": version("torch")})
        self.found, self._sizes = WalkMeasurement(header=header), sizes

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        yield "starting two processes"
        with (
            open_testbed(_RANKS, "unshaped", kind="loopback", self_check=False) as bed,
            started_ranks(bed, "benchmarks.walk_rank:Walking") as ranks,
        ):
            for elems in self._sizes:
                yield f"{elems} elements"
                ranks.tell("walk", elems=elems)
                told, _ = ranks.answers("walk")
                self.found.rows.append(Row(elems=elems, **told, timestamp=now()))


def verdicts(measured: WalkMeasurement) -> Iterator[Verdict]:
    """Yield what is reached of what is asked of the smallest gradient."""
    for row in measured.rows:
        if row.elems == JUDGED_ELEMS:
            yield CALLS.judged((), row.calls)
            yield FILES.judged((), row.files)
            yield CHANGES.judged((), row.changes)


def shown(measured: WalkMeasurement, *, functions: bool = False) -> Shown:
    """Yield a table of all sizes, the targets, and what was called of the last size.

    Args:
        measured: It.
        functions: Say what was called by function, and not by file.
    """
    columns: dict[str, Callable[[Row], str]] = {
        "bytes of gradient": lambda row: f"{row.gradient_bytes:,}",
        "calls": lambda row: f"{row.calls:,}",
        "of the library": lambda row: f"{row.own:,}",
        "files": lambda row: str(row.files),
        "changes of thread": lambda row: str(row.changes),
        "step, us": lambda row: f"{1e6 * row.step_s:,.0f}",
        "of the processor, us": lambda row: f"{1e6 * row.cpu_s:,.0f}",
    }
    yield table_of("A step on rank 0", measured.rows, columns)
    yield verdicts_table(verdicts(measured))
    for last in measured.rows[-1:]:
        named = last.functions if functions else last.by_file
        lines = [(name, f"{calls:,}") for name, calls in named.items()]
        yield Table(f"Of {last.gradient_bytes:,} bytes", ("called", "calls"), lines)


ElemsList = Annotated[
    list[int] | None,
    typer.Option("--elems", min=_ROWS, help="Of the parameter; several times, multiples of 16."),
]
Functions = Annotated[bool, typer.Option("--functions", help="Show calls by function.")]


def walk(
    elems: ElemsList = None,
    functions: Functions = False,
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Count the Python calls, files and changes of thread of a step, and time it.

    Takes half a minute.
    """
    bench = WalkBench(elems or [*ELEMS])
    carry_out(bench, partial(shown, functions=functions), json_file, update)
