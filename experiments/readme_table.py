# python experiments/readme_table.py
# python experiments/readme_table.py --check
"""Write the README's results from a committed measurement, so that nobody types a number.

Everything between `<!-- results:begin -->` and `<!-- results:end -->` in README.md comes from
the `cells.jsonl` of a results folder: one table per task and link, losing lines included, with
machine, versions and date. `--check` changes nothing and fails if the README says otherwise.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from lab.derive import Results, Row
from lab.records import CELLS_FILE, FailedRecord, read
from lab.report import MARKDOWN_FILE
from lab.table import COLUMNS, MISSING, Cell, Line, lines

from harness.tables import markdown, table_of, with_block

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MEASUREMENT = ROOT / "experiments" / "results" / "full"
"""What the README quotes: `python experiments/accuracy_vs_bandwidth.py --plan full` wrote it."""

BLOCK = "results"
NONE_YET = (
    "No measurement is committed yet. `python experiments/accuracy_vs_bandwidth.py --plan full "
    "--out experiments/results/full` makes one, and `python experiments/readme_table.py` puts "
    "it here.\n"
)


def _of_bound(baseline: str) -> Cell:
    """A speed-up with the largest that was possible there."""

    def cell(line: Line) -> str:
        speedup, most = (line.mean(f"{what}_over_{baseline}") for what in ("speedup", "bound"))
        if speedup is None:
            return MISSING
        return f"{speedup:.2f}" if most is None else f"{speedup:.2f} of {most:.2f}"

    return cell


def _columns() -> dict[str, Cell]:
    known = {column.title: column.cell for column in COLUMNS}
    plain = ("final quality", "vs float32", "step ms", "MB/step interface", "ratio")
    return {
        "compressor": known["compressor"],
        **{title: known[title] for title in plain},
        "speed-up over DDP float32, of its bound": _of_bound("ddp_float32"),
        "over torch's fp16 hook, of its bound": _of_bound("torch_fp16"),
        "note": lambda line: line.verdict,
    }


def _table(block: list[Line]) -> str:
    columns = _columns()
    return markdown(table_of("", block, columns, frozenset(columns) - {"compressor", "note"}))


def _tables(rows: list[Row]) -> str:
    def place(line: Line) -> str:
        return f"{line.first.task}, {line.first.link or 'not timed'}"

    blocks = groupby(lines(rows), key=place)
    return "\n".join(f"**{heading}**\n\n{_table(list(block))}" for heading, block in blocks)


def _provenance(rows: list[Row], folder: Path) -> str:
    machines = " and ".join(sorted({row.machine for row in rows}))
    versions = {f"{name} {text}" for row in rows for name, text in row.versions.items()}
    dates = sorted({row.date[:10] for row in rows})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    hosts = ", ".join(sorted({f"{row.hosts} hosts ({row.testbed_kind})" for row in rows}))
    whole = folder / MARKDOWN_FILE
    more = f" All columns: [{whole.name}]({_shown(whole)})." if whole.is_file() else ""
    return (
        f"Measured {period} on {machines}; {', '.join(sorted(versions))}; {hosts}; "
        f"{_seeds(rows)}. From [{_shown(folder)}]({_shown(folder)})."
        f"{more}\n"
    )


def _seeds(rows: list[Row]) -> str:
    """How many seeds each task was trained with."""
    by_task: dict[str, set[int]] = {}
    for row in rows:
        by_task.setdefault(row.task, set()).add(row.seed)
    return "seeds: " + ", ".join(f"{task} {len(seeds)}" for task, seeds in by_task.items())


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def results_block(folder: Path = MEASUREMENT) -> str:
    """Return what stands between the two comments.

    Args:
        folder: A results folder; without a measurement in it, the block says so.
    """
    if not (folder / CELLS_FILE).is_file():
        return NONE_YET
    records = read(folder)
    results = Results(records)
    parts = [_provenance(results.rows(), folder), _tables(results.rows())]
    parts += [f"{confirmation}.\n" for confirmation in results.confirmations()]
    parts += [
        f"Failed: {failed.task}, {failed.compressor}, {failed.link or 'unshaped'}: "
        f"{' '.join(failed.error.split())}\n"
        for failed in records
        if isinstance(failed, FailedRecord)
    ]
    return "\n".join(parts)


def main(
    results: Annotated[Path, typer.Option(help="A results folder.")] = MEASUREMENT,
    check: Annotated[bool, typer.Option("--check", help="Only compare; fail on a change.")] = False,
) -> None:
    """Write the README's results block, or check it."""
    text = README.read_text(encoding="utf-8")
    wanted = with_block(text, BLOCK, results_block(results.resolve()))
    if check and text != wanted:
        typer.echo("README.md is out of date: run python experiments/readme_table.py", err=True)
        raise typer.Exit(1)
    if not check:
        README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, help=__doc__)
    app.command(help=__doc__)(main)
    sys.exit(app())
