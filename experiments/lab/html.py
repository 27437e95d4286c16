"""One HTML file with table and interactive plots that opens without a network.

plotly's script is embedded once, ahead of the plots; nothing is fetched from anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from lab.confirm import confirmations
from lab.derive import Results
from lab.plots import PARTS
from lab.records import FailedRecord
from lab.series import Bars, Panel, panels, step_bars
from lab.table import COLUMNS, lines

TEMPLATE = "report.html.j2"


def save_html(results: Results, failures: list[FailedRecord], path: Path) -> None:
    """Writes the report to ``path``, with whatever the results allow."""
    rows = results.rows()
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [_quality_figure(panel) for panel in panels(results, "time")]
    figures += [_quality_figure(panel) for panel in panels(results, "bytes")]
    figures += [_bar_figure(bars) for bars in step_bars(results)]
    text = environment.get_template(TEMPLATE).render(
        plotly_script=Markup(get_plotlyjs()),
        figures=[Markup(_embed(figure)) for figure in figures],
        titles=[column.title for column in COLUMNS],
        lines=[(line.verdict, [c.cell(line) for c in COLUMNS]) for line in lines(rows)],
        confirmations=confirmations(results),
        failures=failures,
        provenance=rows[-1] if rows else None,
        kinds=sorted({row.testbed_kind for row in rows}),
    )
    path.write_text(text, encoding="utf-8")


def _embed(figure: Any) -> str:
    html: str = figure.to_html(full_html=False, include_plotlyjs=False)
    return html


def _quality_figure(panel: Panel) -> Any:
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


def _bar_figure(bars: Bars) -> Any:
    figure = go.Figure()
    for label, attribute, colour in PARTS:
        milliseconds = [1e3 * part_s for part_s in getattr(bars, attribute)]
        figure.add_bar(
            y=bars.compressors, x=milliseconds, name=label, orientation="h", marker_color=colour
        )
    title = f"{bars.task}, {bars.link}: where a step's time goes"
    figure.update_layout(title=title, barmode="stack", height=480, template="plotly_white")
    figure.update_xaxes(title="milliseconds per step")
    figure.update_yaxes(autorange="reversed")
    return figure
