"""Plots of whole trainings, from what experiments/accuracy_vs_bandwidth.py left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from harness.tables import Table, markdown
from website.charts import Bar, Curve, bars, plot, style
from website.committed import RESULTS, ROOT

sys.path.append(str(ROOT / "experiments"))  # scripts, no package

from lab.derive import Results
from lab.plots import Bars, Panel, panels, step_bars
from lab.records import BASELINES, CELLS_FILE, DDP_FLOAT32, TrainRecord, read
from lab.table import COLUMNS, MISSING, lines

FOLDERS = (
    "full",
    "demo",
    "strategies",
    "near",
    "near_gpt",
    "far",
    "far_gpt",
    "slow_host",
    "optim",
    "long",
)

_PARTS = {"compute": "s0", "codec": "s2", "exposed communication": "s3"}
_TITLES = (
    "task",
    "link",
    "compressor",
    "final quality",
    "step ms",
    "ratio",
    "speed-up over DDP float32",
)


@cache
def results(folder: str) -> Results:
    """Read the cells of a folder."""
    return Results(read(RESULTS / folder))


def block(folder: str) -> str:
    """Return what a page shows of a folder: when and where, the cells as a file, plots, a table."""
    found = results(folder)
    rows = found.rows()
    dates = sorted({row.date[:10] for row in rows})
    versions = sorted({f"{name} {text}" for row in rows for name, text in row.versions.items()})
    machines = " and ".join(sorted({row.machine for row in rows}))
    kinds = ", ".join(sorted({f"{row.hosts} hosts ({row.testbed_kind})" for row in rows}))
    period = " to ".join(sorted({dates[0], dates[-1]}))
    where = f"Measured {period} on {machines}; {', '.join(versions)}; {kinds}."
    parts = [f"{where} [All cells](site:{_download(folder)}) (JSON lines)."]
    if found.times:
        drawn = [_panel(panel) for spent in ("time", "bytes") for panel in panels(found, spent)]
        parts += [*drawn, *(_steps(one) for one in step_bars(found))]
    else:
        parts += _as_they_went(found)
    parts.append(_table(found))
    return "\n\n".join(part for part in parts if part)


def _panel(panel: Panel) -> str:
    """Draw quality by what was spent."""
    curves: list[Curve] = []
    for curve in panel.curves:
        points = list(zip(curve.spent, curve.quality, strict=True))
        if points:
            curves.append(Curve(curve.compressor, points, _style(curve.compressor, len(curves))))
    if not curves:
        return ""
    return plot(
        curves, panel.spent_label, panel.quality_label, panel.title, f"{panel.title}.", linear=True
    )


def _as_they_went(found: Results) -> Iterator[str]:
    """Draw quality by the seconds that trainings took, where no link was timed by itself."""
    for task in dict.fromkeys(key[0] for key in found.trains):
        first: dict[str, TrainRecord] = {}  # of each compressor's seeds: a curve shows a shape
        for (own, compressor, _), train in sorted(found.trains.items(), key=lambda one: one[0][2]):
            if own == task:
                first.setdefault(compressor, train)
        curves = [
            Curve(name, _points(train), _style(name, number))
            for number, (name, train) in enumerate(first.items())
        ]
        quality = f"validation {next(iter(first.values())).quality_name}"
        what = f"{task}: {quality} against the time that training took"
        yield plot(curves, "seconds", quality, what, f"{what}.", linear=True)


def _points(train: TrainRecord) -> list[tuple[float, float]]:
    return [(point.elapsed_s, point.value) for point in train.curve if point.value is not None]


def _style(compressor: str, number: int) -> str:
    if compressor in BASELINES:
        return "context" if compressor == DDP_FLOAT32 else "context dashed"
    return style(number)


def _steps(one: Bars) -> str:
    """Draw where a step's time goes."""
    shown = []
    for i, compressor in enumerate(one.compressors):
        parts = [(values[i], _PARTS[name]) for name, values in one.parts_ms.items()]
        shown.append(Bar(compressor, parts, f"{sum(length for length, _ in parts):.1f} ms"))
    return bars(shown, one.title, f"{one.title}.", legend=list(_PARTS.items()))


def _table(found: Results) -> str:
    """Of what stands in any line."""
    cells = {column.title: column.cell for column in COLUMNS}
    known = [{title: cells[title](line) for title in _TITLES} for line in lines(found.rows())]
    titles = tuple(title for title in _TITLES if any(line[title] != MISSING for line in known))
    shown = [tuple(line[title] for title in titles) for line in known]
    return markdown(Table("", titles, shown, frozenset(titles) - {"task", "link", "compressor"}))


def _download(folder: str) -> str:
    return f"measurements/{folder}.jsonl"


def downloads() -> Iterator[tuple[str, Path]]:
    """Yield the path on the site and the file of every folder's cells."""
    for folder in FOLDERS:
        yield _download(folder), RESULTS / folder / CELLS_FILE


BLOCKS: dict[str, Callable[[], str]] = {name: partial(block, name) for name in FOLDERS}
