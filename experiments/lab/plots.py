"""PNG plots with matplotlib: quality against bytes, quality against time, step-time bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lab.derive import Results
from lab.series import Bars, Panel, panels, step_bars

PARTS = (
    ("compute", "compute_s", "#4c78a8"),
    ("codec", "codec_s", "#f2a541"),
    ("exposed communication", "exposed_comm_s", "#c44e52"),
)


def save_plots(results: Results, folder: Path) -> list[Path]:
    """Writes all plots that the results allow; returns their paths."""
    saved = [_save_panel(panel, folder, "bytes") for panel in panels(results, "bytes")]
    saved += [_save_panel(panel, folder, "time") for panel in panels(results, "time")]
    saved += [_save_bars(bars, folder) for bars in step_bars(results)]
    return saved


def _save_panel(panel: Panel, folder: Path, spent: str) -> Path:
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
    axes.set_xscale("log")
    axes.set_xlabel(panel.spent_label)
    axes.set_ylabel(panel.quality_label)
    axes.set_title(panel.title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    name = "_".join(part for part in (f"quality_against_{spent}", panel.task, panel.link) if part)
    return _save(figure, folder / f"{name}.png")


def _save_bars(bars: Bars, folder: Path) -> Path:
    figure = Figure(figsize=(8, 0.35 * len(bars.compressors) + 1.8), layout="constrained")
    axes: Any = figure.subplots()
    left = [0.0] * len(bars.compressors)
    for label, attribute, colour in PARTS:
        widths = [1e3 * part_s for part_s in getattr(bars, attribute)]
        axes.barh(bars.compressors, widths, left=left, label=label, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per step")
    axes.set_title(f"{bars.task}, {bars.link}: where a step's time goes")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return _save(figure, folder / f"step_time_{bars.task}_{bars.link.replace(' ', '-')}.png")


def _save(figure: Figure, path: Path) -> Path:
    with mpl.rc_context({"savefig.dpi": 120}):
        figure.savefig(path)
    return path
