"""What the commands of benchmarks between hosts share: their options, their file, their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from benchmarks.records import write

_COLOURS = {"met": "green", "missed": "red"}


class Measurement(Protocol):
    """What is written down, and can be brought up to date by a newer one."""

    def updated(self, newer: Self) -> Self:
        """Return what both hold; of what both have measured, the newer."""


Written = TypeVar("Written", bound=Measurement)
Written_co = TypeVar("Written_co", bound=Measurement, covariant=True)


class Bench(Protocol[Written_co]):
    """What measures."""

    def run(self) -> None:
        """Measure everything."""

    def measurement(self) -> Written_co:
        """Return all of it so far."""


def given(**options: Sequence[Any] | None) -> dict[str, Any]:
    """Leave out what was left out, and what was given twice."""
    return {name: list(dict.fromkeys(several)) for name, several in options.items() if several}


def measure(
    start: Callable[[Callable[[str], None], Callable[[Any], None]], Bench[Written]],
    file: Path | None,
    older: Written | None,
) -> Written:
    """Measure all, and keep the file up to date, so that a run that is ended leaves a part.

    Args:
        start: Makes the benchmark, from what is told of its progress, and what after each row.
        file: Where the measurement is written, if anywhere.
        older: What stays of it where nothing newer is measured.

    Raises:
        ConfigError: What is older can not be brought up to date here.
    """

    def measured(bench: Bench[Written]) -> Written:
        newer = bench.measurement()
        return newer if older is None else older.updated(newer)

    def kept(bench: Bench[Written]) -> None:
        found = measured(bench)
        if file is not None:
            assert isinstance(found, BaseModel), "measurements are written as JSON"
            write(file, found)

    with Console(stderr=True).status("measuring") as status:
        bench = start(status.update, kept)
        measured(bench)  # a file of another machine is refused before anything is measured
        bench.run()
    kept(bench)
    return measured(bench)


def table(titles: Sequence[str], numbers: set[str], lines: Sequence[tuple[str, ...]]) -> Table:
    """Lay lines out under titles, those of numbers to the right, and verdicts in their colours."""
    made = Table(box=None, pad_edge=False)
    for title in titles:
        made.add_column(title, justify="right" if title in numbers else "left")
    for *cells, last in lines:
        colour = _COLOURS.get(last)
        made.add_row(*cells, f"[{colour}]{last}[/{colour}]" if colour else last)
    return made
