"""The result table: the same columns for the terminal, for Markdown and for HTML.

One line per (task, link, compressor), means over the seeds. Lines that lose against a dense
baseline stay in and are marked.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness import tables
from lab.derive import Row
from lab.records import BASELINES

MISSING = "-"
LOSES = "loses"


@dataclass(frozen=True)
class Line:
    """The rows of one (task, link, compressor), one per seed."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """For what does not depend on the seed."""
        return self.rows[0]

    def mean(self, attribute: str) -> float | None:
        """Mean over the seeds; None as soon as one is missing."""
        values = [getattr(row, attribute) for row in self.rows]
        return None if None in values else statistics.fmean(values)

    @property
    def verdict(self) -> str:
        """One of "loses", "baseline" and "", which marks nothing."""
        if self.first.compressor in BASELINES:
            return "baseline"
        return LOSES if self.first.loses else ""


Cell = Callable[[Line], str]
"""What stands in a line under a heading."""


@dataclass(frozen=True)
class Column:
    """A heading and what stands under it.

    Attributes:
        title: Heading in Markdown and HTML.
        short: Heading in a terminal, where task, link and compressor are one column.
        cell: The text for a line.
        spare: A narrow terminal leaves out the columns with the highest number first; 0 stays.
    """

    title: str
    short: str
    cell: Cell
    spare: int = 0


def lines(rows: Iterable[Row]) -> list[Line]:
    """Rows gathered over seeds, in the order of tasks, links, then compressors as they ran."""
    found: dict[tuple[str, str | None, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.task, row.link, row.compressor), []).append(row)
    return [Line(tuple(group)) for group in found.values()]


def _number(value: float | None, digits: int, scale: float = 1.0, suffix: str = "") -> str:
    return MISSING if value is None else f"{value * scale:.{digits}f}{suffix}"


def _quality(line: Line) -> str:
    if line.first.diverged:
        return "diverged"
    accuracy = line.mean("final_accuracy")
    if accuracy is not None:
        return f"{accuracy:.2%}"
    return _number(line.mean("final_loss"), 4)


def _difference(line: Line) -> str:
    difference = line.mean("difference_from_float32")
    if difference is None:
        return MISSING
    if line.first.final_accuracy is not None:
        return f"{difference * 100:+.2f} pt"
    loss = line.mean("final_loss")
    float32 = None if loss is None else loss - difference
    return MISSING if not float32 else f"{difference / float32:+.2%}"


def _figure(attribute: str, digits: int, scale: float = 1.0, suffix: str = "") -> Cell:
    return lambda line: _number(line.mean(attribute), digits, scale, suffix)


COLUMNS = (
    Column("task", "", lambda line: line.first.task),
    Column("link", "", lambda line: line.first.link or MISSING),
    Column("compressor", "", lambda line: line.first.compressor),
    Column("final quality", "quality", _quality),
    Column("vs float32", "vs f32", _difference),
    Column("step ms", "step ms", _figure("step_s", 1, 1e3)),
    Column("compute ms", "compute", _figure("compute_s", 1, 1e3), spare=3),
    Column("codec ms", "codec", _figure("codec_s", 1, 1e3), spare=4),
    Column("exposed comm. ms", "comm.", _figure("exposed_comm_s", 1, 1e3), spare=5),
    Column("MB/step accounted", "MB acc.", _figure("bytes_accounted", 3, 1e-6), spare=11),
    Column("MB/step interface", "MB sent", _figure("bytes_interface", 3, 1e-6), spare=10),
    Column("ratio", "ratio", _figure("ratio", 1), spare=1),
    Column("speed-up over DDP float32", "x DDP", _figure("speedup_over_ddp_float32", 2)),
    Column("its bound", "bound", _figure("bound_over_ddp_float32", 2), spare=7),
    Column("of bound", "of bound", _figure("share_of_bound_over_ddp_float32", 0, 1e2, "%"), 6),
    Column("speed-up over torch fp16", "x fp16", _figure("speedup_over_torch_fp16", 2)),
    Column("its bound", "bound", _figure("bound_over_torch_fp16", 2), spare=9),
    Column("of bound", "of bound", _figure("share_of_bound_over_torch_fp16", 0, 1e2, "%"), 8),
    Column("time to target s", "target s", _figure("time_to_target_s", 1), spare=2),
    Column("", "", lambda line: line.verdict),
)
_NAMING = 3  # the columns that say which cell it is
_STYLES = {LOSES: "red", "baseline": "dim"}


def rich_table(rows: Iterable[Row], width: int) -> Table:
    """The table for a terminal of ``width`` characters; losing lines are red and say so."""
    found = lines(rows)
    columns = _that_fit(found, width)
    kinds = ", ".join(sorted({line.first.testbed_kind for line in found})) or "nothing yet"
    title = f"Accuracy against bandwidth ({kinds})"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column.short, justify="right", no_wrap=True)
    for heading, block in groupby(found, key=_task_and_link):
        table.add_row(heading, style="bold")
        for line in block:
            cells = (column.cell(line) for column in columns)
            table.add_row(f"  {line.first.compressor}", *cells, style=_STYLES.get(line.verdict))
        table.add_section()
    return table


def _task_and_link(line: Line) -> str:
    return f"{line.first.task}, {line.first.link or 'no link'}"


def _that_fit(found: list[Line], width: int) -> list[Column]:
    columns = list(COLUMNS[_NAMING:])
    while any(column.spare for column in columns) and _width(columns, found) > width:
        columns.remove(max(columns, key=lambda column: column.spare))
    return columns


def _width(columns: list[Column], found: list[Line]) -> int:
    """Characters that the table takes: two edges, and a space and a divider for each column."""
    first = max((len(_task_and_link(line)) for line in found), default=0)
    longest = max((len(line.first.compressor) + 2 for line in found), default=0)
    return (
        3
        + max(first, longest)
        + sum(
            2 + max([len(column.short), *(len(column.cell(line)) for line in found)])
            for column in columns
        )
    )


def markdown_table(rows: Iterable[Row]) -> str:
    """The table for a README."""
    titles = tuple(column.title or "note" for column in COLUMNS)
    cells = [tuple(column.cell(line) for column in COLUMNS) for line in lines(rows)]
    return tables.markdown(tables.Table("", titles, cells, frozenset(titles[_NAMING:])))
