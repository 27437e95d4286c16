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
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.exchange import tables as exchange_tables
from benchmarks.exchange.records import ExchangeMeasurement
from benchmarks.kernels import CASES, Measurement, Row, scaling, targets
from benchmarks.records import Header
from benchmarks.schedule import records as schedule_records
from benchmarks.schedule import tables as schedule_tables
from benchmarks.schedule.methods import DDP
from benchmarks.schedule.records import ScheduleMeasurement
from benchmarks.schedule.targets import LEAST_BOUND
from benchmarks.tables import Table, markdown

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
    measurements = [Measurement.read(file) for file in files]
    rows = _latest(row for measurement in measurements for row in measurement.rows)
    parts = [_provenance(measurements), _yardstick(rows), _times(rows)]
    more = (scaling.fixed_costs(rows), scaling.growth(rows))
    parts += [*(markdown(table) for table in more if table.lines), _plots(folder)]
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


def _place(head: Header) -> str:
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
    return markdown(Table("", titles, cells, frozenset(titles)))


def _times(rows: Sequence[Row]) -> str:
    order = {case.name: place for place, case in enumerate(CASES)}
    known = [row for row in rows if row.name in order]
    known.sort(key=lambda row: (row.elems, order[row.name]))
    return markdown(targets.table(known, CASES))


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
    measurement = ExchangeMeasurement.read(file)
    head = measurement.header
    parts = [f"Measured {_dates([head.timestamp])} on {_place(head)}.\n"]
    parts.append(markdown(exchange_tables.targets(measurement)))
    parts += [_captioned(table) for table in exchange_tables.tables(measurement) if table.lines]
    parts += [f"{exchange_tables.BUSY_NOTE}\n".replace("*", "\\*", 1)]
    parts += [f"Not measured, {line}\n" for line in exchange_tables.omissions(measurement)]
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
    measured = ScheduleMeasurement.read(file)
    parts = [_how_steps_are_measured(measured.header), _when_and_where(measured)]
    parts += [_captioned(table) for table in schedule_tables.tables(measured) if table.lines]
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


def _verdicts(measured: ScheduleMeasurement) -> str:
    table = schedule_tables.targets(measured)
    words = Counter(word for *_, word in table.lines)
    counted = ", ".join(f"{words[word]} {word}" for word in ("met", "missed", "not judged"))
    why = (
        "Not judged is what could show nothing: units whose bound is below "
        f"{LEAST_BOUND:.2f}, a trace where pairs of steps differ by more than is asked, turns of "
        "jobs that do not disturb each other.\n"
    )
    parts = [f"Targets: {counted}.\n", markdown(table)]
    return "\n".join(parts + [why] * bool(words["not judged"]))


def _captioned(table: Table) -> str:
    return f"{table.caption}.\n\n{markdown(table)}"


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
