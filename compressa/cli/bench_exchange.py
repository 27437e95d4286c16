"""`compressa bench exchange`: collectives between hosts, beside Gloo's, MPI's and the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from compressa.bench import write
from compressa.bench.network import tables
from compressa.bench.network.records import ExchangeMeasurement
from compressa.bench.network.run import ExchangeBench, Settings
from compressa.config.sizes import parse_bytes
from compressa.errors import ConfigError
from compressa.testbed import LinkSpec

T = TypeVar("T")

EPILOG = "Example: compressa bench exchange --hosts 4 --link 1gbit --what 'r*' --json r.json"

_HOSTS, _LINKS = (2, 4, 8), ("100mbit", "1gbit", "unshaped")
_SIZES = ("1KiB", "16KiB", "256KiB", "1MiB", "4MB", "16MB", "100MB")
_QUICK_HOSTS, _QUICK_LINKS, _QUICK_SIZES = (2,), ("1gbit",), ("1KiB", "16KiB", "4MB")
_BUDGET_S, _QUICK_BUDGET_S = 0.5, 0.2
_COLOURS = {"met": "green", "missed": "red"}


def exchange(
    hosts: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Hosts; may be given several times. 2, 4 and 8 if left out."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Speed of each link, several times. 100mbit, 1gbit, unshaped."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help='Bytes, several times, such as "64KiB" or 4e6. From 1 KiB to 100 MB.'),
    ] = None,
    what: Annotated[str, typer.Option(help="Only methods whose names match this pattern.")] = "*",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all rows to this file.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="2 hosts at 1 Gbit/s and three sizes: half a minute.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(min=0.01, help="Seconds for a row; long operations run once.")
    ] = None,
    longest: Annotated[
        float, typer.Option(min=0.1, help="Leave operations out that take more seconds.")
    ] = 10.0,
) -> None:
    """Time collectives between hosts on shaped links, side by side in one run.

    Ours, Gloo's own and, where mpi4py and mpiexec are installed, MPI's own; one rank on each
    host, one thread for each rank. "Of line rate" is the time that the bytes of a method's formula
    take in one plain TCP stream, over the time taken; docs/performance.md says how it is measured.

    Needs network namespaces: Linux, and root or user namespaces. All of it takes a quarter of an
    hour.
    """
    default_budget = _QUICK_BUDGET_S if quick else _BUDGET_S
    settings = Settings(
        hosts=_once(hosts or (_QUICK_HOSTS if quick else _HOSTS)),
        links=_once(map(_link, link or (_QUICK_LINKS if quick else _LINKS))),
        sizes_bytes=_once(map(_bytes, size or (_QUICK_SIZES if quick else _SIZES))),
        pattern=what,
        budget_s=budget or default_budget,
        longest_s=longest,
    )
    measurement = _measure(settings, json_file)
    _show(Console(), measurement)


def _once(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _link(text: str) -> str:
    return str(LinkSpec.parse(text))


def _bytes(text: str) -> int:
    try:
        found = float(text) if "e" in text.lower() else parse_bytes(text)
        size_bytes = int(found)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--size {error}") from error
    if size_bytes < 4 or size_bytes % 4 or size_bytes != found:
        raise ConfigError(f"--size: {text} is no size of a vector of float32: give a multiple of 4")
    return size_bytes


def _measure(settings: Settings, json_file: Path | None) -> ExchangeMeasurement:
    """Measure all, and keep the file up to date, so that a run that is ended leaves a part."""

    def kept(bench: ExchangeBench) -> None:
        if json_file is not None:
            write(json_file, bench.measurement())

    with Console(stderr=True).status("measuring") as status:
        bench = ExchangeBench(settings, status.update, kept)
        bench.run()
    kept(bench)
    return bench.measurement()


def _show(console: Console, measurement: ExchangeMeasurement) -> None:
    for network in measurement.networks:
        titles, lines = tables.times(network, measurement.rows)
        console.print(f"\n{tables.describe(network)}", highlight=False)
        console.print(_table(titles, set(titles[1:]), lines))
    console.print(f"\n{tables.BUSY_NOTE}\n", highlight=False)
    console.print(_table(tables.TARGET_TITLES, tables.TARGET_NUMBERS, tables.targets(measurement)))
    for line in tables.omissions(measurement):
        console.print(f"Not measured, {line}", highlight=False)


def _table(titles: Sequence[str], numbers: set[str], lines: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left")
    for *cells, last in lines:
        colour = _COLOURS.get(last)
        table.add_row(*cells, f"[{colour}]{last}[/{colour}]" if colour else last)
    return table
