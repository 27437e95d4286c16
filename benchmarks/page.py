"""`python -m benchmarks.page`: write the figures of docs/performance.md from what is committed.

Everything between `<!-- kernels:begin -->` and `<!-- kernels:end -->` comes from the files that
`python -m benchmarks kernels --json docs/measurements/kernels.json` leaves; targets are those of
`benchmarks.kernels.CASES`. Several files, one for each size perhaps, are taken together. Likewise
`<!-- exchange:begin -->` and its end stand around what comes from the file of
`python -m benchmarks exchange --json docs/measurements/exchange.json`. The section "Steps whose
communication overlaps" as a whole comes from the file of
`python -m benchmarks schedule --json docs/measurements/schedule.json`.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.exchange import records, tables
from benchmarks.exchange.part_tables import Table, part_tables
from benchmarks.kernels import CASES, Measurement, Row, read, scaling, targets
from benchmarks.schedule import records as schedule_records
from benchmarks.schedule import tables as schedule_tables
from benchmarks.schedule.methods import AUTO, DDP
from benchmarks.schedule.records import Case, Jobs, Pushes, ScheduleMeasurement, Step
from benchmarks.schedule.targets import LEAST_BOUND
from compressa.link.texts import ms_text, size_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"
MEASUREMENTS = DOCS / "measurements"
NONE_YET = "No measurement is committed yet.\n"
SCHEDULE = "schedule.json"
SCHEDULE_HEADING = "## Steps whose communication overlaps"


def figures_block(folder: Path = MEASUREMENTS) -> str:
    """Return what stands between the two comments.

    Args:
        folder: Holds the files; without any, the block says so.
    """
    files = sorted(folder.glob("kernels*.json"))
    if not files:
        return NONE_YET
    measurements = [read(file) for file in files]
    rows = _latest(row for measurement in measurements for row in measurement.rows)
    parts = [_provenance(measurements), _yardstick(rows), _times(rows)]
    parts += [_fixed_costs(rows), _scaling(rows), _plots(folder)]
    return "\n".join(part for part in parts if part)


def _latest(rows: Iterable[Row]) -> list[Row]:
    """Leave out what another file has measured again later."""
    by_time = sorted(rows, key=lambda row: row.timestamp)
    return list({(row.benchmark, row.case, row.peer): row for row in by_time}.values())


def _provenance(measurements: Sequence[Measurement]) -> str:
    headers = [measurement.header for measurement in measurements]
    machines = {f"{h.cpu}, {h.cores} cores, {_caches(h.caches_bytes)}{h.system}" for h in headers}
    versions = {f"{name} {text}" for h in headers for name, text in h.versions.items()}
    return (
        f"Measured {_dates(h.timestamp for h in headers)} on {' and '.join(sorted(machines))}"
        f"; {', '.join(sorted(versions))}.\n"
    )


def _dates(timestamps: Iterable[datetime]) -> str:
    days = sorted(f"{timestamp:%Y-%m-%d}" for timestamp in timestamps)
    return " to ".join(sorted({days[0], days[-1]}))


def _place(head: records.Header | schedule_records.Header) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in sorted(head.versions.items()))
    return f"{head.cpu}, {head.cores} cores, {head.system}; {versions}"


def _caches(caches_bytes: dict[str, int]) -> str:
    return "".join(f"{name} {_binary(size)}, " for name, size in caches_bytes.items())


def _binary(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def _yardstick(rows: Sequence[Row]) -> str:
    """Of the sizes that cases were measured at: smaller ones say more of caches than of memory."""
    sizes = {row.elems for row in rows if row.benchmark == "kernels" and row.metric == "time"}
    found = [row for row in rows if row.metric == "bandwidth" and row.elems in sizes]
    cells = [
        (f"{r.elems:,}", str(r.threads), f"{r.median:.1f}", f"{r.p20:.1f}", f"{r.p80:.1f}")
        for r in sorted(found, key=lambda row: row.elems)
    ]
    titles = ("elements", "threads", "yardstick GB/s", "p20", "p80")
    return _markdown(titles, set(titles), cells)


def _times(rows: Sequence[Row]) -> str:
    order = {case.name: place for place, case in enumerate(CASES)}
    known = [row for row in rows if row.name in order]
    known.sort(key=lambda row: (row.elems, order[row.name]))
    titles = (*targets.TITLES[:-1], "target")
    return _markdown(titles, targets.NUMBERS, targets.table(known, CASES))


def _fixed_costs(rows: Sequence[Row]) -> str:
    cells = [
        (row.name, f"{row.median:.1f}", "met" if row.median <= scaling.MOST_FIXED_US else "missed")
        for row in rows
        if row.benchmark == "kernels-fixed-cost"
    ]
    what = f"microseconds on {scaling.SMALL_ELEMS:,} elements"
    titles = ("case", what, f"at most {scaling.MOST_FIXED_US:.0f}")
    return _markdown(titles, {what}, cells) if cells else ""


def _scaling(rows: Sequence[Row]) -> str:
    """Nanoseconds per element, a line per case and a column per size: level where it is linear."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.benchmark == "kernels-scaling":
            found.setdefault(row.name, {})[row.elems] = 1e3 * row.median / row.elems
    sizes = sorted({elems for line in found.values() for elems in line})
    columns = [f"{elems:.0e}".replace("e+0", "e") for elems in sizes]
    cells = [
        (name, *(f"{line[elems]:.2f}" if elems in line else "-" for elems in sizes))
        for name, line in found.items()
    ]
    return _markdown(("ns per element at", *columns), set(columns), cells) if found else ""


def _plots(folder: Path) -> str:
    files = [file for file in sorted(folder.glob("kernels*.png")) if folder == MEASUREMENTS]
    return "".join(f"![Time by number of elements](measurements/{file.name})\n" for file in files)


def exchange_block(folder: Path = MEASUREMENTS) -> str:
    """Return what stands between the two comments of exchanges.

    Args:
        folder: Holds the file; without it, the block says so.
    """
    file = folder / "exchange.json"
    if not file.exists():
        return NONE_YET
    measurement = records.read(file)
    head = measurement.header
    parts = [f"Measured {_dates([head.timestamp])} on {_place(head)}.\n"]
    numbers = tables.TARGET_NUMBERS
    titles = (*tables.TARGET_TITLES[:-1], "target met")
    parts.append(_markdown(titles, numbers, tables.targets(measurement)))
    for network in measurement.networks:
        titles, cells = tables.times(network, measurement.rows)
        if cells:
            parts += [tables.describe(network) + ".\n", _markdown(titles, set(titles[1:]), cells)]
    parts += [_captioned(part) for part in part_tables(measurement)]
    parts += [f"{tables.BUSY_NOTE}\n".replace("*", "\\*", 1)]
    parts += [f"Not measured, {line}\n" for line in tables.omissions(measurement)]
    return "\n".join(parts)


def schedule_section(folder: Path = MEASUREMENTS) -> str:
    """Return what stands below the heading of steps whose communication overlaps.

    Args:
        folder: Holds the measurement.

    Raises:
        ConfigError: The file holds none.
    """
    file = folder / SCHEDULE
    if not file.exists():
        return NONE_YET
    measured = schedule_records.read(file)
    parts = [_how_steps_are_measured(measured.header), _when_and_where(measured)]
    parts += [_captioned(table) for table in _schedule_tables(measured) if table.lines]
    return "\n".join([*parts, _verdicts(measured)])


def _how_steps_are_measured(head: schedule_records.Header) -> str:
    *caps, last_cap = [f"{method.bucket_cap_mb:g}" for method in DDP]
    text = (
        f"`python -m benchmarks schedule` trains a perceptron of {head.layers} layers "
        f"({head.parameters:,} parameters) on {head.hosts} hosts of the testbed, with one rank on "
        f"each; threads of a rank: {head.threads_per_rank}. Methods take turns, some steps at a "
        "time; a row has the median and the 20th and 80th percentiles. F (forward) and B (backward "
        "and the optimizer's update) are measured without communication and C without computing, "
        "in the same turns; the slowest rank counts. The ideal step is max(F + B, C), and 1.00 in "
        "the tables. "
        f"DistributedDataParallel is taken at the best of buckets of {', '.join(caps)} and "
        f"{last_cap} MB; sizes that lose the first turn get no other. Beside bf16 it has torch's "
        "fp16 hook, as many bytes, since that for bf16 is for GPUs only; it has no int8. A "
        "simulated step is worked out from the profile of the method's own steps. Ranks are told "
        "not to give memory back to the system (`MALLOC_TRIM_THRESHOLD_`, "
        "`MALLOC_MMAP_THRESHOLD_`), all methods alike: page faults would take a part of each step, "
        "and not the same in all methods. Each rank stays on a core of its own, as a host with one "
        "would. Units of the hook and of fifo have at least 256 KiB of gradients (64 KiB of "
        "payload), since the links are slow; those of the others are as large as their policy "
        "wants them."
    )
    return textwrap.fill(text, 100, break_on_hyphens=False) + "\n"


def _when_and_where(measured: ScheduleMeasurement) -> str:
    """Rows may be of several days, since a file can be brought up to date part by part."""
    steps = (measured.cases, measured.steps, measured.pipelined)
    others = (measured.overhead, measured.traced, measured.jobs, measured.pushes)
    days = [row.timestamp for rows in (*steps, *others) for row in rows]
    return f"Measured {_dates(days or [measured.header.timestamp])} on {_place(measured.header)}.\n"


def _schedule_tables(measured: ScheduleMeasurement) -> Iterator[Table]:
    method, ms, *others, _ = schedule_tables.STEP_TITLES
    for case in measured.cases:
        titles = (method, ms, "p20 to p80", *others, "error")
        yield Table(schedule_tables.describe(case), titles, _steps(measured, case))
    yield Table(
        "Units through the engine below the hook, one after the other (apart) and pipelined; the "
        "gain is that of encoding, wire and decoding together over the pipelined time, and its "
        "bound that over the longest of them",
        schedule_tables.HOOK_TITLES,
        schedule_tables.hook(measured),
    )
    costs = [(row.what, f"{row.chunks:,}", f"{row.chunk_us:.2f}") for row in measured.overhead]
    yield Table(
        "To plan chunks, and to hand them over", ("what is done", "chunks", "us per chunk"), costs
    )
    yield _traced(measured)
    yield from map(_jobs, measured.jobs)
    yield from map(_pushes, measured.pushes)


def _steps(measured: ScheduleMeasurement, case: Case) -> list[tuple[str, ...]]:
    return [
        (method, ms, f"{ms_text(row.p20_s)} to {ms_text(row.p80_s)}", *others, _error(row))
        for row, (method, ms, *others, _) in zip(
            measured.of(case), schedule_tables.steps(measured, case), strict=True
        )
    ]


def _error(step: Step) -> str:
    return "-" if step.simulated_s is None else f"{step.simulated_s / step.median_s - 1:+.0%}"


def _traced(measured: ScheduleMeasurement) -> Table:
    caption = f"Steps of `{AUTO}` with a trace, as multiples of those without beside them"
    titles = ("step without, ms", "with", "quartiles", "processor time")
    lines = [
        (
            ms_text(row.step_s),
            f"{row.ratio:.3f}",
            f"{row.ratio_low:.3f} to {row.ratio_high:.3f}",
            f"{row.cpu_ratio:.3f}",
        )
        for row in measured.traced
    ]
    return Table(caption, titles, lines)


def _jobs(jobs: Jobs) -> Table:
    shares = {"fifo": "all packets in one queue", "fair": "even shares of it for connections"}
    caption = (
        f"Two jobs on one link of {jobs.link}, {shares[jobs.port]} ({jobs.port}), "
        f"{size_text(jobs.size_bytes)} of gradients a step; alone, a job communicates for "
        f"{jobs.communication:.0%} of its time, and computing is a timed wait, up to "
        f"{jobs.jitter:.0%} longer or shorter. Steps as multiples of each job's "
        f"mean step alone, which is {ms_text(jobs.alone_s)} ms for the first"
    )
    ways = ("not staggered", "staggered")
    steps = zip((jobs.unstaggered, jobs.staggered), jobs.medians, jobs.worsts, strict=True)
    alone, *together = map(_burstiness, jobs.burstiness)
    lines = [("alone", "1.00", "-", "-", alone)] + [
        (way, *map(_of_each, several), burstiness)
        for way, several, burstiness in zip(ways, steps, together, strict=True)
    ]
    return Table(caption, ("jobs", "mean", "median", "worst", "peak over mean in 10 ms"), lines)


def _of_each(steps: Iterable[float]) -> str:
    return ", ".join(f"{step:.2f}" for step in steps)


def _pushes(row: Pushes) -> Table:
    caption = (
        f"Four workers push {size_text(row.size_bytes)} each to one parameter server, and pull as "
        f"much, on links of {row.link}; segments are those of TCP, the backlog that at the "
        "server's port"
    )
    titles = ("workers push", "round, ms", "segments sent again", "most backlog, bytes")
    lines = [
        (way, ms_text(round_s), f"{again:,}", f"{most:,}", _burstiness(burstiness))
        for way, round_s, again, most, burstiness in zip(
            ("at once", "in slots"),
            row.round_s,
            row.retransmitted,
            row.peak_bytes,
            row.burstiness,
            strict=True,
        )
    ]
    return Table(caption, (*titles, "peak over mean in 10 ms"), lines)


def _burstiness(peak_over_mean: float | None) -> str:
    return "-" if peak_over_mean is None else f"{peak_over_mean:.2f}"


def _verdicts(measured: ScheduleMeasurement) -> str:
    lines = schedule_tables.targets(measured)
    words = Counter(word for *_, word in lines)
    counted = ", ".join(f"{words[word]} {word}" for word in ("met", "missed", "not judged"))
    titles = (*schedule_tables.TARGET_TITLES[:-1], "target met")
    why = (
        "Not judged is what could show nothing: units whose bound is below "
        f"{LEAST_BOUND:.2f}, a trace where pairs of steps differ by more than is asked, turns of "
        "jobs that do not disturb each other.\n"
    )
    table = _markdown(titles, schedule_tables.TARGET_NUMBERS, lines)
    return "\n".join([f"Targets: {counted}.\n", table] + [why] * bool(words["not judged"]))


def _captioned(table: Table) -> str:
    lines = _markdown(table.titles, set(table.titles[1:]), table.lines)
    return f"{table.caption}.\n\n{lines}"


def _markdown(titles: Sequence[str], numbers: set[str], cells: Sequence[Sequence[str]]) -> str:
    rules = ["---:" if title in numbers else "---" for title in titles]
    return "".join("| " + " | ".join(line) + " |\n" for line in (titles, rules, *cells))


def with_figures(page: str, block: str, name: str = "kernels") -> str:
    """Return the page's text with the block between the comments of that name.

    Raises:
        ValueError: It does not have each comment once, in order.
    """
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end or first in rest or last in after:
        raise ValueError(f"the page must hold {first} and {last} once each, in this order")
    return f"{before}{first}\n\n{block}\n{last}{after}"


def with_section(page: str, heading: str, text: str) -> str:
    """Return the page's text with another one between a heading and the next, of any level.

    Raises:
        ValueError: The page does not have the heading once.
    """
    before, found, rest = page.partition(f"\n{heading}\n")
    if not found or found in rest:
        raise ValueError(f"the page must hold {heading!r} once")
    _, following, after = rest.partition("\n##")
    return f"{before}{found}\n{text}{following}{after}"


def up_to_date(page: str, folder: Path = MEASUREMENTS) -> str:
    """Return the page's text with the figures that a folder holds."""
    page = with_figures(page, figures_block(folder))
    page = with_figures(page, exchange_block(folder), "exchange")
    return with_section(page, SCHEDULE_HEADING, schedule_section(folder))


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
