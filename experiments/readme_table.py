# python experiments/readme_table.py
# python experiments/readme_table.py --check
"""Write the README's figures from a committed measurement, so that nobody types a number.

Everything between `<!-- results:begin -->` and `<!-- results:end -->` in README.md, and the picture
above it, come from the `cells.jsonl` of a results folder: one task with a line per compressor,
losing lines included, with machine, versions and date. `--check` changes nothing and fails if they
say otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from lab.derive import Results, Row
from lab.records import FailedRecord, read
from lab.report import MARKDOWN_FILE
from lab.svg import Bar, bars
from lab.table import COLUMNS, MISSING, Line, lines

from harness.tables import Table, markdown, with_block

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "steps.svg"
MEASUREMENT = ROOT / "experiments" / "results" / "full"
"""What the README quotes: `python experiments/accuracy_vs_bandwidth.py --plan full` wrote it."""

TASK = "gpt-full"
SLOW, FAST = "100mbit", "unshaped"
BLOCK = "results"
_TITLES = (
    "compressor",
    "final loss",
    "vs float32",
    "MB a step",
    "100 Mbit/s: ms a step",
    "times float32's speed, of the bound",
    "unshaped: ms a step",
    "times float32's speed",
)
_CELLS = {column.title: column.cell for column in COLUMNS}


def _of_bound(line: Line) -> str:
    """A speed-up with the largest that was possible there."""
    speedup, most = (line.mean(f"{what}_over_ddp_float32") for what in ("speedup", "bound"))
    if speedup is None:
        return MISSING
    return f"{speedup:.2f}" if most is None else f"{speedup:.2f} of {most:.2f}"


def _on(rows: Sequence[Row], link: str) -> dict[str, Line]:
    """The lines on a link, by compressor."""
    return {line.first.compressor: line for line in lines(rows) if line.first.link == link}


def _table(rows: Sequence[Row]) -> str:
    fast = _on(rows, FAST)
    cells = []
    for name, line in _on(rows, SLOW).items():
        own = [_CELLS[title](line) for title in ("final quality", "vs float32")]
        sent, step_ms = _CELLS["MB/step interface"](line), _CELLS["step ms"](line)
        here = (f"`{name}`", *own, sent, step_ms, _of_bound(line))
        there = [MISSING] * 2
        if name in fast:
            faster = fast[name].mean("speedup_over_ddp_float32")
            there = [
                _CELLS["step ms"](fast[name]),
                MISSING if faster is None else f"{faster:.2f}",
            ]
        cells.append((*here, *there))
    return markdown(Table("", _TITLES, cells))


def picture(folder: Path = MEASUREMENT, task: str = TASK) -> str:
    """Return the SVG of the steps on the slow link, with what each compressor's run ended at.

    Args:
        folder: A results folder with a measurement of the task in it.
        task: The task.
    """
    found = _on([row for row in Results(read(folder)).rows() if row.task == task], SLOW)
    rows = [
        Bar(
            name,
            [1e3 * (line.mean(part) or 0.0) for part in ("compute_s", "codec_s", "exposed_comm_s")],
            f"{_CELLS['step ms'](line)} ms, loss {_CELLS['final quality'](line)}",
        )
        for name, line in found.items()
    ]
    first = next(iter(found.values())).first
    return bars(f"{task}: a training step on {first.hosts} hosts at 100 Mbit/s", rows)


def _provenance(rows: list[Row], folder: Path) -> str:
    machines = " and ".join(sorted({row.machine for row in rows}))
    versions = {f"{name} {text}" for row in rows for name, text in row.versions.items()}
    dates = sorted({row.date[:10] for row in rows})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    hosts = ", ".join(sorted({f"{row.hosts} hosts ({row.testbed_kind})" for row in rows}))
    whole = folder / MARKDOWN_FILE
    more = f" All columns and tasks: [{whole.name}]({_shown(whole)})." if whole.is_file() else ""
    return (
        f"Measured {period} on {machines}; {', '.join(sorted(versions))}; {hosts}; "
        f"seeds: {len({row.seed for row in rows})}."
        f"{more}\n"
    )


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def results_block(folder: Path = MEASUREMENT, task: str = TASK) -> str:
    """Return what stands between the two comments.

    Args:
        folder: A results folder.
        task: Of which task its lines are.
    """
    records = read(folder)
    rows = [row for row in Results(records).rows() if row.task == task]
    failed = [
        f"Failed: {one.compressor}, {one.link or FAST}: {' '.join(one.error.split())}\n"
        for one in records
        if isinstance(one, FailedRecord) and one.task == task
    ]
    return "\n".join([_table(rows), _provenance(rows, folder), *failed])


def main(
    results: Annotated[Path, typer.Option(help="A results folder.")] = MEASUREMENT,
    check: Annotated[bool, typer.Option("--check", help="Only compare; fail on a change.")] = False,
) -> None:
    """Write the README's figures, or check them."""
    folder = results.resolve()
    text = README.read_text(encoding="utf-8")
    wanted = {
        README: with_block(text, BLOCK, results_block(folder)),
        PICTURE: picture(folder),
    }
    if check:
        old = [file for file, made in wanted.items() if file.read_text(encoding="utf-8") != made]
        for file in old:
            typer.echo(
                f"{file.name} is out of date: run python experiments/readme_table.py", err=True
            )
        if old:
            raise typer.Exit(1)
        return
    for file, made in wanted.items():
        file.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, help=__doc__)
    app.command(help=__doc__)(main)
    sys.exit(app())
