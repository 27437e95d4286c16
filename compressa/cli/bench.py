"""`compressa bench`: what compressors cost on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from compressa.bench import CASES, Bench, Case, Row, scaling, targets, write
from compressa.bench.device import BenchDevice, device_named
from compressa.errors import ConfigError

bench_app = typer.Typer(
    no_args_is_help=True, epilog="Example: compressa bench kernels --case 'int8*' --json int8.json"
)

_Device = Literal["cpu", "cuda"]
_COLOURS = {"met": "green", "missed": "red"}


@bench_app.callback()
def bench() -> None:
    """Measure what compressors cost on this machine."""


@bench_app.command(epilog='Example: compressa bench kernels --case "int8*" --json int8.json')
def kernels(
    elems: Annotated[
        list[float] | None,
        typer.Option(
            help="Elements; may be given several times. 25e6 and 200e6 if left out, on a GPU 100e6."
        ),
    ] = None,
    device: Annotated[
        _Device, typer.Option(help="Where compressors run: the CPU, or the current GPU.")
    ] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads that share a call.")] = 2,
    case: Annotated[str, typer.Option(help="Only cases whose names match this pattern.")] = "*",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all rows to this file.")
    ] = None,
    with_scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Also from 1e4 to 1e8 elements, with a plot beside the JSON file, and the fixed "
            "cost of a call.",
        ),
    ] = False,
    repeats: Annotated[int, typer.Option(min=7, help="Samples per case, at least 7.")] = 9,
) -> None:
    """Time every compressor against the memory bus and against plain implementations.

    "Of the limit" is the time in which the bytes of a call could cross the memory bus, over the
    time taken; docs/performance.md says how it is measured. The two default sizes take about
    six minutes on two cores, and up to 10 GB.
    """
    where = device_named(device)
    sizes, cases = _sizes(elems, where), _matching(case, where.kind)
    if with_scaling:
        _require_place(json_file)
    run = Bench(threads=threads, repeats=repeats, device=where)
    _measure(run, cases, sizes, json_file, with_scaling=with_scaling)
    console = Console()
    console.print(_times(run.rows, cases))
    console.print(f"Targets hold at {where.default_elems[-1]:,} elements.")
    if with_scaling and json_file is not None:
        what = f"microseconds per call on {scaling.SMALL_ELEMS:,} elements"
        console.print(f"\nFixed cost: {what}; at most {scaling.MOST_FIXED_US:.0f}.")
        console.print(_fixed_costs(run.rows))
        scaling.save_plot(run.rows, json_file.with_suffix(".png"))
    _say_what_is_missing(console, run, cases)


def _sizes(given: Sequence[float] | None, device: BenchDevice) -> list[int]:
    if not given:
        return list(device.default_elems)
    wrong = [size for size in given if size < 1 or not size.is_integer()]
    if wrong:
        raise ConfigError(f"--elems: {wrong[0]:g} is no number of elements")
    return [int(size) for size in given]


def _matching(pattern: str, kind: str) -> list[Case]:
    known = [case for case in CASES if kind == "cpu" or case.least_on_gpu is not None]
    cases = [case for case in known if fnmatchcase(case.name, pattern)]
    if not cases:
        names = ", ".join(case.name for case in known)
        raise ConfigError(f"--case: no name matches {pattern!r}; there are: {names}")
    return cases


def _require_place(json_file: Path | None) -> None:
    if json_file is None:
        raise ConfigError("--scaling draws a plot beside the JSON file; say where with --json")
    scaling.require_matplotlib()


def _measure(
    run: Bench,
    cases: Sequence[Case],
    sizes: Sequence[int],
    json_file: Path | None,
    *,
    with_scaling: bool,
) -> None:
    """Measure all, and keep the file up to date, so that a run that is ended leaves a part."""

    def rows() -> Iterator[Row]:
        yield from run.run(cases, sizes)
        if with_scaling:
            yield from scaling.run(run, cases)

    with Console(stderr=True).status("measuring") as status:
        for row in rows():
            status.update(f"measured {row.case}")
            if json_file is not None:
                write(json_file, run.measurement())


def _times(rows: Sequence[Row], cases: Sequence[Case]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in targets.TITLES:
        table.add_column(title, justify="right" if title in targets.NUMBERS else "left")
    for *cells, verdict in targets.table(rows, cases):
        colour = _COLOURS.get(verdict)
        table.add_row(*cells, f"[{colour}]{verdict}[/{colour}]" if colour else verdict)
    return table


def _fixed_costs(rows: Sequence[Row]) -> Table:
    table = Table("case", box=None, pad_edge=False)
    table.add_column("us", justify="right")
    for row in rows:
        if row.benchmark == "kernels-fixed-cost":
            colour = "green" if row.median <= scaling.MOST_FIXED_US else "red"
            table.add_row(row.name, f"[{colour}]{row.median:.1f}[/{colour}]")
    return table


def _say_what_is_missing(console: Console, run: Bench, cases: Sequence[Case]) -> None:
    names = [c.name for c in cases if c.build() is None or c.name in run.unavailable]
    if names:
        console.print(f"Not there yet: {', '.join(names)}.")
