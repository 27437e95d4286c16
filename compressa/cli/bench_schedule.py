"""`compressa bench schedule`: steps whose communication overlaps with computing, beside DDP's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from compressa.bench import write
from compressa.bench.schedule import tables
from compressa.bench.schedule.plan import LINKS, PARTS, RATIOS, Settings
from compressa.bench.schedule.records import ScheduleMeasurement, read
from compressa.bench.schedule.run import ScheduleBench
from compressa.errors import ConfigError
from compressa.testbed import LinkSpec

EPILOG = "Example: compressa bench schedule --part steps --compressor bf16 --ratio 1 --json s.json"

_QUICK: dict[str, Any] = {"parts": ["steps"], "compressors": ["int8"], "ratios": [1.0]}
_BUDGET_S, _QUICK_BUDGET_S = 40.0, 15.0
_COLOURS = {"met": "green", "missed": "red"}


def schedule(
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"What to measure, several times: {', '.join(PARTS)}; all if left out."),
    ] = None,
    compressor: Annotated[
        list[str] | None,
        typer.Option(help=f"Of the steps, several times: {', '.join(LINKS)}; all if left out."),
    ] = None,
    ratio: Annotated[
        list[float] | None,
        typer.Option(
            help="Of communication to computing, several times; "
            f"{', '.join(f'{r:g}' for r in RATIOS)} if left out."
        ),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Speed of each link, instead of the compressors' own.")
    ] = None,
    what: Annotated[str, typer.Option(help="Only methods whose names match this pattern.")] = "*",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all rows to this file.")
    ] = None,
    update: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write to this file; rows of it that are not measured again stay."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="int8 at C = F + B alone: a minute.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds for each case of the steps.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of each case of the steps at least.")
    ] = 3,
) -> None:
    """Time training steps whose communication overlaps with computing, side by side in one run.

    Two hosts, one rank with one thread on each, a perceptron of 17 MB. F and B are measured
    without communication and C without computing, between the steps; the ideal step is the larger
    of F + B and C. Beside ours is DDP at the best of three sizes of its buckets.

    Needs network namespaces: Linux, and root or user namespaces.
    """
    if json_file is not None and update is not None:
        raise ConfigError("--json writes a new file and --update an older one: give one of them")
    settings = Settings(
        link=None if link is None else str(LinkSpec.parse(link)),
        pattern=what,
        least_rounds=rounds,
        budget_s=(_QUICK_BUDGET_S if quick else _BUDGET_S) if budget is None else budget,
        **(_QUICK if quick else {}) | _given(parts=part, compressors=compressor, ratios=ratio),
    )
    older = None if update is None or not update.exists() else read(update)
    _show(Console(), _measure(settings, json_file or update, older))


def _given(**options: Sequence[Any] | None) -> dict[str, Any]:
    """Leave out what was left out, and what was given twice."""
    return {name: list(dict.fromkeys(several)) for name, several in options.items() if several}


def _measure(
    settings: Settings, file: Path | None, older: ScheduleMeasurement | None
) -> ScheduleMeasurement:
    """Measure all, and keep the file up to date, so that a run that is ended leaves a part."""

    def measured(bench: ScheduleBench) -> ScheduleMeasurement:
        newer = bench.measurement()
        return newer if older is None else older.updated(newer)

    def kept(bench: ScheduleBench) -> None:
        if file is not None:
            write(file, measured(bench))

    with Console(stderr=True).status("measuring") as status:
        bench = ScheduleBench(settings, status.update, kept)
        bench.run()
    kept(bench)
    return measured(bench)


def _show(console: Console, measurement: ScheduleMeasurement) -> None:
    for case in measurement.cases:
        console.print(f"\n{tables.describe(case)}", highlight=False)
        lines = tables.steps(measurement, case)
        console.print(_table(tables.STEP_TITLES, tables.STEP_NUMBERS, lines))
    if measurement.pipelined:
        console.print()
        lines = tables.hook(measurement)
        console.print(_table(tables.HOOK_TITLES, tables.HOOK_NUMBERS, lines))
    console.print()
    console.print(_table(tables.TARGET_TITLES, tables.TARGET_NUMBERS, tables.targets(measurement)))


def _table(titles: Sequence[str], numbers: set[str], lines: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left")
    for *cells, last in lines:
        colour = _COLOURS.get(last)
        table.add_row(*cells, f"[{colour}]{last}[/{colour}]" if colour else last)
    return table
