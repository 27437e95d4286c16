"""What the plots draw, worked out once for matplotlib and plotly alike.

A curve is quality against what was spent: bytes sent per host, or seconds on a link. Quality comes
from the unshaped run and the price of a step from the timing cell, as everywhere in the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.derive import Results
from lab.names import BASELINES
from lab.records import TimeRecord, TrainRecord
from lab.steptime import compute_s, exposed_comm_s

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

Spent = Literal["bytes", "time"]


@dataclass(frozen=True)
class Curve:
    """Quality of one compressor as it is paid for."""

    compressor: str
    colour: str
    dashed: bool
    spent: list[float]
    quality: list[float]


@dataclass(frozen=True)
class Panel:
    """One plot of curves."""

    task: str
    link: str | None
    title: str
    spent_label: str
    quality_label: str
    curves: list[Curve]


@dataclass(frozen=True)
class Bars:
    """Step times of one (task, link), in seconds: three parts that add up to the step."""

    task: str
    link: str
    compressors: list[str]
    compute_s: list[float]
    codec_s: list[float]
    exposed_comm_s: list[float]


def colours(results: Results) -> dict[str, str]:
    """A colour per compressor, the same in every plot; the baselines are greys."""
    names = dict.fromkeys([key[1] for key in results.trains] + [key[2] for key in results.times])
    others = [name for name in names if name not in BASELINES]
    chosen = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(others)}
    return chosen | dict(zip(BASELINES, _GREYS, strict=True))


def panels(results: Results, spent: Spent) -> list[Panel]:
    """One panel per (task, link) for time, and one per task for bytes (no link matters there).

    The first seed stands for all: a curve is there to show a shape, the table has the means.
    """
    made: dict[tuple[str, str | None], Panel] = {}
    palette = colours(results)
    for (task, compressor, seed), train in results.trains.items():
        if seed != min(s for (t, c, s) in results.trains if (t, c) == (task, compressor)):
            continue
        for time in _prices(results, task, compressor, spent):
            link = time.link if spent == "time" else None
            panel = made.setdefault((task, link), _empty(task, link, spent, train.quality_name))
            panel.curves.append(_curve(results, train, time, spent, palette[compressor]))
    return list(made.values())


def _prices(results: Results, task: str, compressor: str, spent: Spent) -> list[TimeRecord]:
    found = [time for (t, _, c), time in results.times.items() if (t, c) == (task, compressor)]
    return found if spent == "time" else found[:1]


def _curve(
    results: Results, train: TrainRecord, time: TimeRecord, spent: Spent, colour: str
) -> Curve:
    paid = results.training_s if spent == "time" else results.training_bytes
    scale = 1.0 if spent == "time" else 1e-6
    points = [(paid(train, time, p.step), p.value) for p in train.curve]
    known = [(price * scale, value) for price, value in points if price and value is not None]
    return Curve(
        compressor=train.compressor,
        colour=colour,
        dashed=train.compressor in BASELINES,
        spent=[price for price, _ in known],
        quality=[value for _, value in known],
    )


def _empty(task: str, link: str | None, spent: Spent, quality: str) -> Panel:
    where = f"{task}, {link}" if link else task
    against = "bytes sent" if spent == "bytes" else "time (steps x step time)"
    label = "MB sent per host" if spent == "bytes" else "seconds of training"
    return Panel(
        task=task,
        link=link,
        title=f"{where}: validation {quality} against {against}",
        spent_label=label,
        quality_label=f"validation {quality}",
        curves=[],
    )


def step_bars(results: Results) -> list[Bars]:
    """One group of bars per (task, link), in the order of the run."""
    groups: dict[tuple[str, str], list[TimeRecord]] = {}
    for (task, link, _), time in results.times.items():
        groups.setdefault((task, link or "not shaped"), []).append(time)
    return [
        Bars(
            task=task,
            link=link,
            compressors=[time.compressor for time in times],
            compute_s=[compute_s(time) for time in times],
            codec_s=[_waited_for_codec_s(time) for time in times],
            exposed_comm_s=[exposed_comm_s(time) for time in times],
        )
        for (task, link), times in groups.items()
    ]


def _waited_for_codec_s(time: TimeRecord) -> float:
    """Codec work beside computing costs a step nothing; only what is left of the step counts."""
    return min(time.codec_s or 0.0, max(0.0, time.step_s - compute_s(time)))
