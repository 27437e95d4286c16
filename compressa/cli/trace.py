"""`compressa trace`: what a recorded trace amounts to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import markup
from rich.console import Console
from rich.table import Table

from compressa.cli._tables import figures_table, ms, say
from compressa.errors import escaped

if TYPE_CHECKING:
    from compressa.tracing.summary import Figures, Summary

_CAUSES = {
    "compute_s": "computing",
    "calls_s": "in calls of compressa",
    "core_s": "waiting for a core",
    "lock_s": "waiting for the interpreter's lock",
    "codec_s": "waiting for encode and decode",
    "wire_s": "waiting for the wire",
    "peers_s": "waiting for peers",
    "carried_s": "waiting for the wire or peers",
    "queued_s": "waiting for work to be taken up",
    "elsewhere_s": "blocked by something of its own",
    "unknown_s": "not accounted for",
}
_EITHER = "waiting for a core or the lock"

trace_app = typer.Typer(
    help="What a trace of training amounts to.",
    epilog="Example: compressa trace summary trace-rank0.json",
    no_args_is_help=True,
)

_MOST_STEPS = 20


@trace_app.callback()
def _group() -> None:
    """Keep `summary` a command of its own."""


@trace_app.command(epilog="Example: compressa trace summary trace-rank0.json trace-rank1.json")
def summary(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="What handle.trace, or trace.path, has written; one per rank."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print where the time of the steps went: exposed communication, queueing, an idle link.

    A table says what each millisecond of the training thread was spent on; its rows add up to the
    step. What the system does not tell apart has one row, and what is not known has one, too.

    Exposed is for how long the thread that trains waited; the rest of a step is called compute. The
    link is idle while nothing is on the wire, and it need not be while a unit that is ready has
    something unsent. An inversion is an exchange that waited to leave while one that the next
    forward needs later was being sent.
    """
    from compressa.tracing.reader import read
    from compressa.tracing.summary import summarise

    summaries = [summarise(read(file)) for file in files]
    if as_json:
        pairs = zip(files, summaries, strict=True)
        typer.echo(json.dumps([{"file": str(f), **_as_json(s)} for f, s in pairs], indent=2))
        return
    _print(files, summaries)


def _as_json(summary: Summary) -> dict[str, Any]:
    def plain(figures: Figures) -> dict[str, Any]:
        return {**dataclasses.asdict(figures), "compute_s": figures.compute_s}

    return {
        **dataclasses.asdict(summary),
        "steps": [{"step": step, **plain(figures)} for step, figures in summary.steps],
        "total": plain(summary.total),
        "exposed": [{"name": name, "seconds": seconds} for name, seconds in summary.exposed],
    }


def _print(files: Sequence[Path], summaries: Sequence[Summary]) -> None:
    console = Console()
    rows = [(f"{s.rank}", len(s.steps), s.total) for s in summaries]
    console.print(_figures_table("rank, mean of its steps", rows))
    for file, each in zip(files, summaries, strict=True):
        say(f"\n{_headline(file, each)}")
        shown = each.steps[-_MOST_STEPS:]
        console.print(_figures_table("step", [(f"{step}", 1, figures) for step, figures in shown]))
        console.print(_breakdown_table(each))
        for note in _notes(each):
            say(note)
        console.print(_queueing_table(each.total))
        console.print(_exposed_table(each))


def _headline(file: Path, summary: Summary) -> str:
    said = [
        f"{escaped(str(file))}: rank {summary.rank} of {summary.size}, {len(summary.steps)} steps"
    ]
    if len(summary.steps) > _MOST_STEPS:
        said.append(f"the last {_MOST_STEPS} are shown")
    if summary.dropped_steps:
        said.append(f"{summary.dropped_steps} before them were dropped for want of room")
    if summary.dropped_spans:
        said.append(f"{summary.dropped_spans} spans are missing for want of room")
    return "; ".join(said) + "."


def _figures_table(title: str, rows: Sequence[tuple[str, int, Figures]]) -> Table:
    """Milliseconds, and a number of inversions, per step."""
    titles = ("step ms", "compute", "exposed", "idle", "idle, ready", "inversions", "ms")
    table = figures_table([title], titles)
    for name, steps, figures in rows:
        times = (
            figures.seconds,
            figures.compute_s,
            figures.exposed_s,
            figures.idle_s,
            figures.idle_ready_s,
        )
        each = [ms(seconds / max(steps, 1)) for seconds in times]
        inverted = f"{figures.inversions / max(steps, 1):.4g}"
        table.add_row(name, *each, inverted, ms(figures.inverted_s / max(steps, 1)))
    return table


def _breakdown_table(summary: Summary) -> Table:
    """What steps were spent on: their mean, its shares, the fastest one and the slowest."""
    table = figures_table(["\nthe step is spent"], ["\nmean ms", "\n%"])
    steps = sorted(summary.steps, key=lambda pair: (pair[1].seconds, pair[0]))
    shown = steps[:1] + steps[1:][-1:]
    for which, (step, _) in zip(("fastest", "slowest"), shown, strict=False):
        table.add_column(f"{which}\n{step}: ms", justify="right")
    total, count = summary.total.breakdown, max(len(steps), 1)
    for field, name in _CAUSES.items():
        values = [getattr(figures.breakdown, field) for _, figures in shown]
        if field == "core_s" and not summary.cores_known:
            continue
        if field == "lock_s" and not summary.cores_known:
            name = _EITHER
        table.add_row(name, *_parts(getattr(total, field), total.seconds, count, values))
    lengths = [figures.breakdown.seconds for _, figures in shown]
    table.add_row("step", *_parts(total.seconds, total.seconds, count, lengths))
    return table


def _parts(seconds: float, of_s: float, count: int, values: Sequence[float]) -> list[str]:
    share = f"{100 * seconds / of_s:.1f}" if of_s else "-"
    return [ms(seconds / count), share, *map(ms, values)]


def _notes(summary: Summary) -> list[str]:
    """What is not told apart, in sentences."""
    said = []
    if not summary.training_known:
        said.append("What training did outside of waits is not known, and taken for computing.")
    elif not summary.cores_known:
        said.append("This system does not tell how long threads wait for a core.")
    return said


def _queueing_table(total: Figures) -> Table:
    table = figures_table(["\nqueued for"], ["\ntimes", "\nsum ms", "\n95 % within ms"])
    for what, queueing in total.queueing.items():
        table.add_row(what, f"{queueing.waits}", ms(queueing.total_s), ms(queueing.p95_s))
    return table


def _exposed_table(summary: Summary) -> Table:
    table = figures_table(["\nwaited for"], ["\nms in all", "\nper step"])
    for name, seconds in summary.exposed:
        plain = markup.escape(escaped(name))
        table.add_row(plain, ms(seconds), ms(seconds / max(len(summary.steps), 1)))
    return table
