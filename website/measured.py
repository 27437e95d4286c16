"""Plots and short tables of what is committed in docs/measurements, for the pages of benchmarks.

Every row is in the file that a page links to; a page shows what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.diloco import DiLoCoMeasurement
from benchmarks.diloco import shown as diloco_shown
from benchmarks.kernels.records import Measurement as KernelsMeasurement
from benchmarks.kernels.records import Row
from benchmarks.kernels.scaling import MOST_FIXED_US
from benchmarks.kernels.table import CASES
from benchmarks.kernels.tables import met
from benchmarks.schedule.records import Case as ScheduleCase
from benchmarks.schedule.records import ScheduleMeasurement
from benchmarks.schedule.tables import describe as describe_schedule
from benchmarks.schedule.tables import name_of as name_of_schedule
from benchmarks.schedule.tables import shown as schedule_shown
from benchmarks.schedule.tables import verdicts as schedule_verdicts
from benchmarks.steps.plan import ALONE
from benchmarks.steps.ratios import Ratios
from benchmarks.steps.records import Case as StepsCase
from benchmarks.steps.records import StepsMeasurement
from benchmarks.steps.tables import describe as describe_steps
from benchmarks.steps.tables import shown as steps_shown
from benchmarks.steps.targets import verdicts as steps_verdicts
from compressa.link.texts import ms_text
from harness.records import Measurement
from harness.runner import as_page
from harness.tables import WORDS, Table, Verdict, markdown, verdicts_table
from website import verbs
from website.charts import Bar, Curve, bars, colour, plot
from website.committed import MEASUREMENTS
from website.times import element_ns

KINDS: dict[str, type[Measurement]] = {
    "kernels": KernelsMeasurement,
    "exchange": verbs.ExchangeMeasurement,
    "schedule": ScheduleMeasurement,
    "steps": StepsMeasurement,
    "diloco": DiLoCoMeasurement,
}
"""By the name of its file, what is read."""


def kernels(measured: KernelsMeasurement) -> Iterator[str]:
    """Yield the share of the limit of each case, how times grow, and the main table."""
    timed = [row for row in measured.rows if row.benchmark == "kernels" and row.metric == "time"]
    largest = max(row.elems for row in timed if not row.name.startswith("powersgd"))
    first = {row.name: row for row in timed if row.elems == largest and row.limit_ratio}
    reached = [
        Bar(name, [(row.limit_ratio or 0.0, "s0")], f"{row.limit_ratio:.2f}")
        for name, row in first.items()
    ]
    what = f"Share of the limit of the memory bus, {largest:,} elements; the line is 1, its speed"
    yield bars(reached, what, f"{what}.", bound=1.0)
    yield markdown(_kernel_table([row for row in timed if row.elems == largest]))
    grown: dict[str, list[tuple[float, float]]] = {}
    for row in measured.rows:
        if row.benchmark == "kernels-scaling":
            grown.setdefault(row.name, []).append((float(row.elems), row.median))
    curves = [Curve(name, points, colour(i)) for i, (name, points) in enumerate(grown.items())]
    what = "Microseconds per call by number of elements"
    yield plot(curves, "elements", "microseconds per call", what, f"{what}.")
    small = [row for row in measured.rows if row.benchmark == "kernels-fixed-cost"]
    fixed = [Bar(row.name, [(row.median, "s0")], f"{row.median:.1f} us") for row in small]
    what = (
        f"What a call costs on 1,024 elements; the line is {MOST_FIXED_US:.0f} us, the most asked"
    )
    yield bars(fixed, what, f"{what}.", bound=MOST_FIXED_US)


def _kernel_table(rows: Iterable[Row]) -> Table:
    """Of each case, beside the peer whose target it has, or the first."""
    cases = {case.name: case for case in CASES}
    lines, known = [], set()
    for row in rows:
        if row.name in known or row.name not in cases:
            continue
        known.add(row.name)
        share = "-" if row.limit_ratio is None else f"{row.limit_ratio:.2f}"
        faster = "-" if row.speedup is None else f"{row.speedup:.1f} times {row.peer}"
        verdict = met(cases[row.name], row)
        word = "" if verdict is None else WORDS[verdict]
        lines.append((row.name, f"{element_ns(row):.3f}", share, faster, word))
    titles = ("case", "ns per element", "of the limit", "faster", "target")
    return Table("", titles, lines, frozenset(titles[1:3]))


def schedule(measured: ScheduleMeasurement) -> Iterator[str]:
    """Yield steps beside the ideal, case by case, then the other parts."""
    for case in measured.cases:
        steps = measured.of(case)
        if steps:
            yield f"### {name_of_schedule(case)}\n"
            shown = [
                Bar(
                    s.method,
                    [(s.median_s / case.ideal_s, "s0")],
                    f"{s.median_s / case.ideal_s:.2f}",
                )
                for s in steps
            ]
            what = f"Steps as multiples of the ideal: {name_of_schedule(case)}"
            yield bars(shown, what, describe_schedule(case) + ".", bound=1.0)
    names = {describe_schedule(case) for case in measured.cases}
    yield "### Parts\n"
    yield from _without(schedule_shown(measured), names)
    yield from _judged(schedule_verdicts(measured), "case")


def steps(measured: StepsMeasurement) -> Iterator[str]:
    """Yield whole steps, case by case, then small messages."""
    names = set()
    for case in measured.cases:
        ratios = Ratios(case, measured.of(case))
        names.add(describe_steps(case, ratios))
        alone_s = ratios.alone.median_s
        shown = [
            Bar(
                s.method,
                [(s.median_s, "context" if s.method == ALONE.name else "s0")],
                _ms(s.median_s),
            )
            for s in ratios.steps
        ]
        yield f"### {_named(case)}\n"
        what = f"Milliseconds of a step: {_named(case)}; the line is computing alone"
        yield bars(shown, what, describe_steps(case, ratios) + ".", bound=alone_s)
    yield "### Small messages\n"
    yield from _without(steps_shown(measured), names)
    yield from _judged(steps_verdicts(measured), "hosts", "link", "model")


def _named(case: StepsCase | ScheduleCase) -> str:
    assert isinstance(case, StepsCase)
    return f"{case.model}, {case.hosts} hosts, {case.link}"


def _ms(seconds: float) -> str:
    return f"{ms_text(seconds)} ms"


def diloco(measured: DiLoCoMeasurement) -> Iterator[str]:
    """Yield what training waits for in the meetings of a round, by link and method."""
    opening, *_, agreement, closing = (p for p in diloco_shown(measured) if isinstance(p, str))
    yield opening
    for link in dict.fromkeys(row.link for row in measured.rows):
        rows = [row for row in measured.rows if row.link == link]
        every, fragments = rows[0].every, rows[0].fragments
        same = [row for row in rows if (row.every, row.fragments) == (every, fragments)]
        shown = []
        for row in same:
            if row.meeting_s:
                middle = sorted(row.meeting_s)[len(row.meeting_s) // 2]
                kilobytes = f"{row.counted_bytes / 1e3:,.0f} kB"
                shown.append(
                    Bar(row.method, [(max(middle, 0.0), "s0")], f"{_ms(middle)}, {kilobytes}")
                )
        what = f"What training waits for in a round of {every} steps, {link}"
        yield bars(shown, what, f"{what}; F = {fragments}, and the bytes of the busier host.")
    yield agreement
    yield closing


def _without(shown: Iterable[Table | str], captions: set[str]) -> Iterator[str]:
    """Yield the tables that have a caption, but for those that are drawn."""
    for part in shown:
        if isinstance(part, Table) and part.caption and part.caption not in captions:
            yield from as_page([part])


def _judged(verdicts: Iterable[Verdict], *where: str) -> Iterator[str]:
    """Yield how many targets are met, and a table of those that are missed."""
    found = list(verdicts)
    counts = {word: sum(WORDS[v.met] == word for v in found) for word in WORDS.values()}
    yield "### Targets\n"
    yield ", ".join(f"{count} {word}" for word, count in counts.items()) + ".\n"
    missed = [verdict for verdict in found if verdict.met is False]
    if missed:
        yield markdown(verdicts_table(missed, *where))


def exchange(measured: verbs.ExchangeMeasurement) -> Iterator[str]:
    """Yield times of sums by size for each network, then the other parts."""
    yield from verbs.drawn(measured)
    yield from _judged(verbs.verdicts(measured), "hosts", "link")


DRAWN: dict[str, Callable[..., Iterator[str]]] = {
    "kernels": kernels,
    "exchange": exchange,
    "schedule": schedule,
    "steps": steps,
    "diloco": diloco,
}


def block(name: str, folder: Path = MEASUREMENTS) -> str:
    """Return what a page shows of a measurement: when and where, all rows as a file, and plots.

    Raises:
        ConfigError: The file holds no such measurement.
    """
    measured = KINDS[name].read(folder / f"{name}.json")
    link = f"[All rows](site:measurements/{name}.json) (JSON)."
    return "\n\n".join([f"{measured.when_and_where} {link}", *DRAWN[name](measured)])


BLOCKS: dict[str, Callable[[], str]] = {name: partial(block, name) for name in KINDS}
