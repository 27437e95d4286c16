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
from rich.console import JustifyMethod
from rich.table import Table

from lab.derive import Row
from lab.names import BASELINES

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
        """ "loses", "baseline" or nothing."""
        if self.first.compressor in BASELINES:
            return "baseline"
        return LOSES if self.first.loses else ""


@dataclass(frozen=True)
class Column:
    """A heading, what stands under it, and a heading short enough for a terminal.

    Attributes:
        title: Heading in Markdown and HTML.
        short: Heading in a terminal.
        cell: The text for a line.
        spare: A narrow terminal leaves out the columns with the highest number first; 0 stays.
    """

    title: str
    short: str
    cell: Callable[[Line], str]
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


def _speedup(over: str) -> Callable[[Line], str]:
    def cell(line: Line) -> str:
        speedup, bound = line.mean(f"speedup_over_{over}"), line.mean(f"bound_over_{over}")
        return MISSING if speedup is None else f"{speedup:.2f} ({_number(bound, 2)})"

    return cell


def _milliseconds(attribute: str) -> Callable[[Line], str]:
    return lambda line: _number(line.mean(attribute), 1, 1e3)


def _megabytes(attribute: str) -> Callable[[Line], str]:
    return lambda line: _number(line.mean(attribute), 3, 1e-6)


COLUMNS = (
    Column("task", "task", lambda line: line.first.task),
    Column("link", "link", lambda line: line.first.link or MISSING),
    Column("compressor", "compressor", lambda line: line.first.compressor),
    Column("final quality", "quality", _quality),
    Column("vs float32", "vs f32", _difference),
    Column("step ms", "step ms", _milliseconds("step_s")),
    Column("compute ms", "compute", _milliseconds("compute_s"), spare=3),
    Column("codec ms", "codec", _milliseconds("codec_s"), spare=4),
    Column("exposed comm. ms", "comm.", _milliseconds("exposed_comm_s"), spare=5),
    Column("MB/step accounted", "MB acc.", _megabytes("bytes_accounted"), spare=7),
    Column("MB/step interface", "MB sent", _megabytes("bytes_interface"), spare=6),
    Column("ratio", "ratio", lambda line: _number(line.mean("ratio"), 1), spare=1),
    Column("speed-up over DDP float32 (bound)", "x f32 (bound)", _speedup("ddp_float32")),
    Column("speed-up over torch fp16 (bound)", "x fp16 (bound)", _speedup("torch_fp16")),
    Column(
        "time to target s", "target s", lambda line: _number(line.mean("time_to_target_s"), 1), 2
    ),
    Column("", "", lambda line: line.verdict),
)
_LEFT = ("task", "link", "compressor")
_STYLES = {LOSES: "red", "baseline": "dim"}


def rich_table(rows: Iterable[Row], width: int) -> Table:
    """The table for a terminal of ``width`` characters; losing lines are red and say so."""
    found = lines(rows)
    columns = _that_fit(found, width)
    kinds = ", ".join(sorted({line.first.testbed_kind for line in found})) or "nothing yet"
    title = f"Accuracy against bandwidth ({kinds})"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        justify: JustifyMethod = "left" if column.title in _LEFT else "right"
        table.add_column(column.short, justify=justify, no_wrap=True)
    for _, block in groupby(found, key=lambda line: (line.first.task, line.first.link)):
        for line in block:
            cells = (column.cell(line) for column in columns)
            table.add_row(*cells, style=_STYLES.get(line.verdict))
        table.add_section()
    return table


def _that_fit(found: list[Line], width: int) -> list[Column]:
    columns = list(COLUMNS)
    while any(column.spare for column in columns) and _width(columns, found) > width:
        columns.remove(max(columns, key=lambda column: column.spare))
    return columns


def _width(columns: list[Column], found: list[Line]) -> int:
    frame = 2
    return frame + sum(
        1 + max(len(column.short), *(len(column.cell(line)) for line in found), 0)
        for column in columns
    )


def markdown_table(rows: Iterable[Row]) -> str:
    """The table for a README."""
    texts = [[column.title or "note" for column in COLUMNS]]
    texts.append(["---" if column.title in _LEFT else "---:" for column in COLUMNS])
    texts += [[column.cell(line) for column in COLUMNS] for line in lines(rows)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in texts)
