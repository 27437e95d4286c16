"""Plots: quality against bytes and against time, and step-time bars; as PNGs and in one HTML file.

A curve is quality against what was spent: bytes sent per host, or seconds on a link. Quality comes
from the unshaped run and the price of a step from the timing cell, as everywhere in the report.

The PNGs are matplotlib's. The HTML report has the table and interactive plots of plotly's, whose
script is embedded once, ahead of them: it opens without a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure
from plotly.offline import get_plotlyjs

from lab.derive import SECONDS, SENT_BYTES, Results
from lab.records import BASELINES, FailedRecord, TimeRecord, TrainRecord
from lab.table import COLUMNS, lines

TEMPLATE = "report.html.j2"

_COLOURS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#bcbd22",
    "#17becf",
    "#4b5d16",
)
_GREYS = ("#000000", "#6b6b6b", "#a8a8a8")
_PART_COLOURS = {"compute": "#4c78a8", "codec": "#f2a541", "exposed communication": "#c44e52"}

Spent = Literal["bytes", "time"]


@dataclass(frozen=True)
class Curve:
    """Quality of one compressor as it is paid for."""

    compressor: str
    colour: str
    spent: list[float]
    quality: list[float]

    @property
    def dashed(self) -> bool:
        """Whether it is a baseline's."""
        return self.compressor in BASELINES


@dataclass(frozen=True)
class Panel:
    """One plot of curves."""

    title: str
    spent_label: str
    quality_label: str
    file: str
    curves: list[Curve]


@dataclass(frozen=True)
class Bars:
    """Steps of one (task, link) in milliseconds, as parts by name that add up to the step."""

    title: str
    file: str
    compressors: list[str]
    parts_ms: dict[str, list[float]]


def save_plots(results: Results, folder: Path) -> None:
    """Writes all plots that the results allow, as PNGs into ``folder``, by names of their own."""
    for spent in ("bytes", "time"):
        for panel in panels(results, spent):
            _save(_drawn_panel(panel), folder / panel.file)
    for bars in step_bars(results):
        _save(_drawn_bars(bars), folder / bars.file)


def save_html(results: Results, failures: list[FailedRecord], path: Path) -> None:
    """Writes the HTML report.

    Args:
        results: Whatever of them there is.
        failures: Cells that gave none.
        path: Where to; replaced.
    """
    rows = results.rows()
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [
        _live_panel(panel) for spent in ("time", "bytes") for panel in panels(results, spent)
    ]
    figures += [_live_bars(bars) for bars in step_bars(results)]
    embedded = [figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures]
    text = environment.get_template(TEMPLATE).render(
        plotly_script=Markup(get_plotlyjs()),
        figures=[Markup(figure) for figure in embedded],
        titles=[column.title for column in COLUMNS],
        lines=[(line.verdict, [c.cell(line) for c in COLUMNS]) for line in lines(rows)],
        confirmations=results.confirmations(),
        failures=failures,
        provenance=rows[-1] if rows else None,
        kinds=sorted({row.testbed_kind for row in rows}),
    )
    path.write_text(text, encoding="utf-8")


def panels(results: Results, spent: Spent) -> list[Panel]:
    """One panel per (task, link) for time, and one per task for bytes (no link matters there).

    The first seed stands for all: a curve is there to show a shape, the table has the means.
    """
    made: dict[tuple[str, str | None], Panel] = {}
    palette = _colours(results)
    for (task, compressor, seed), train in results.trains.items():
        if seed != min(s for (t, c, s) in results.trains if (t, c) == (task, compressor)):
            continue
        found = [time for (t, _, c), time in results.times.items() if (t, c) == (task, compressor)]
        for time in found if spent == "time" else found[:1]:
            link = time.link if spent == "time" else None
            panel = made.setdefault((task, link), _empty(task, link, spent, train.quality_name))
            panel.curves.append(_curve(results, train, time, spent, palette[compressor]))
    return list(made.values())


def _colours(results: Results) -> dict[str, str]:
    """A colour per compressor, the same in every plot; the baselines are greys."""
    names = dict.fromkeys([key[1] for key in results.trains] + [key[2] for key in results.times])
    others = [name for name in names if name not in BASELINES]
    chosen = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(others)}
    return chosen | dict(zip(BASELINES, _GREYS, strict=True))


def _curve(
    results: Results, train: TrainRecord, time: TimeRecord, spent: Spent, colour: str
) -> Curve:
    price, scale = (SECONDS, 1.0) if spent == "time" else (SENT_BYTES, 1e-6)
    points = [(results.cost(train, time, p.step, price), p.value) for p in train.curve]
    known = [(paid * scale, value) for paid, value in points if paid and value is not None]
    paid, quality = ([point[axis] for point in known] for axis in (0, 1))
    return Curve(train.compressor, colour, paid, quality)


def _empty(task: str, link: str | None, spent: Spent, quality: str) -> Panel:
    where = f"{task}, {link}" if link else task
    against = "bytes sent" if spent == "bytes" else "time (steps x step time)"
    name = "_".join(part for part in (f"quality_against_{spent}", task, link) if part)
    return Panel(
        title=f"{where}: validation {quality} against {against}",
        spent_label="MB sent per host" if spent == "bytes" else "seconds of training",
        quality_label=f"validation {quality}",
        file=f"{name}.png",
        curves=[],
    )


def step_bars(results: Results) -> list[Bars]:
    """One group of bars per (task, link), in the order of the run."""
    groups: dict[tuple[str, str], list[TimeRecord]] = {}
    for (task, link, _), time in results.times.items():
        groups.setdefault((task, link or "not shaped"), []).append(time)
    return [
        Bars(
            title=f"{task}, {link}: where a step's time goes",
            file=f"step_time_{task}_{link.replace(' ', '-')}.png",
            compressors=[time.compressor for time in times],
            parts_ms={
                "compute": [1e3 * time.compute_s for time in times],
                "codec": [1e3 * _waited_for_codec_s(time) for time in times],
                "exposed communication": [1e3 * time.exposed_comm_s for time in times],
            },
        )
        for (task, link), times in groups.items()
    ]


def _waited_for_codec_s(time: TimeRecord) -> float:
    """Codec work beside computing costs a step nothing; only what is left of the step counts."""
    return min(time.codec_s or 0.0, max(0.0, time.step_s - time.compute_s))


def _drawn_panel(panel: Panel) -> Figure:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.subplots()
    for curve in panel.curves:
        axes.plot(
            curve.spent,
            curve.quality,
            label=curve.compressor,
            color=curve.colour,
            linestyle="--" if curve.dashed else "-",
            marker="o",
            markersize=3,
        )
    axes.set(xscale="log", xlabel=panel.spent_label, ylabel=panel.quality_label, title=panel.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _drawn_bars(bars: Bars) -> Figure:
    figure = Figure(figsize=(8, 0.35 * len(bars.compressors) + 1.8), layout="constrained")
    axes: Any = figure.subplots()
    left = [0.0] * len(bars.compressors)
    for label, widths in bars.parts_ms.items():
        colour = _PART_COLOURS[label]
        axes.barh(bars.compressors, widths, left=left, label=label, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds per step", title=bars.title)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _save(figure: Figure, path: Path) -> None:
    with mpl.rc_context({"savefig.dpi": 120}):
        figure.savefig(path)


def _live_panel(panel: Panel) -> Any:
    figure = go.Figure()
    for curve in panel.curves:
        figure.add_scatter(
            x=curve.spent,
            y=curve.quality,
            name=curve.compressor,
            mode="lines+markers",
            line={"color": curve.colour, "dash": "dash" if curve.dashed else "solid"},
        )
    figure.update_layout(title=panel.title, height=480, template="plotly_white")
    figure.update_xaxes(type="log", title=panel.spent_label)
    figure.update_yaxes(title=panel.quality_label)
    return figure


def _live_bars(bars: Bars) -> Any:
    figure = go.Figure()
    for label, widths in bars.parts_ms.items():
        colour = _PART_COLOURS[label]
        figure.add_bar(
            y=bars.compressors, x=widths, name=label, orientation="h", marker_color=colour
        )
    figure.update_layout(title=bars.title, barmode="stack", height=480, template="plotly_white")
    figure.update_xaxes(title="milliseconds per step")
    figure.update_yaxes(autorange="reversed")
    return figure
