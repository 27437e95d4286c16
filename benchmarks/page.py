"""`python -m benchmarks.page`: write the figures of docs/performance.md from what is committed.

Everything between `<!-- kernels:begin -->` and `<!-- kernels:end -->` comes from the file that
`python -m benchmarks kernels --json docs/measurements/kernels.json` leaves; targets are those of
`benchmarks.kernels.CASES`. Likewise for `exchange` and `schedule`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.exchange import tables as exchange_tables
from benchmarks.exchange.records import ExchangeMeasurement
from benchmarks.kernels import CASES, Measurement, Row, scaling, targets
from benchmarks.schedule import tables as schedule_tables
from benchmarks.schedule.records import ScheduleMeasurement
from benchmarks.schedule.targets import LEAST_BOUND
from harness.pages import with_block
from harness.tables import Table, markdown, table_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"
MEASUREMENTS = DOCS / "measurements"
NONE_YET = "No measurement is committed yet.\n"


def kernels_block(folder: Path) -> list[str]:
    """Return the paragraphs on kernels."""
    measured = Measurement.read(folder / "kernels.json")
    rows = measured.rows
    parts = [f"{measured.when_and_where}\n", _yardstick(rows), _times(rows)]
    more = (scaling.fixed_costs(rows), scaling.growth(rows))
    parts += [markdown(table) for table in more if table.lines]
    plot = folder / "kernels.png"
    shown = f"![Time by number of elements]({folder.name}/{plot.name})\n"
    return [*parts, *[shown] * plot.exists()]


def _yardstick(rows: Sequence[Row]) -> str:
    """Of the sizes that cases were measured at: smaller ones say more of caches than of memory."""
    sizes = {row.elems for row in rows if row.benchmark == "kernels" and row.metric == "time"}
    found = [row for row in rows if row.metric == "bandwidth" and row.elems in sizes]
    columns: dict[str, Callable[[Row], str]] = {
        "elements": lambda row: f"{row.elems:,}",
        "threads": lambda row: str(row.threads),
        "yardstick GB/s": lambda row: f"{row.median:.1f}",
        "p20": lambda row: f"{row.p20:.1f}",
        "p80": lambda row: f"{row.p80:.1f}",
    }
    found.sort(key=lambda row: row.elems)
    return markdown(table_of("", found, columns, frozenset(columns)))


def _times(rows: Sequence[Row]) -> str:
    order = {case.name: place for place, case in enumerate(CASES)}
    known = [row for row in rows if row.name in order]
    known.sort(key=lambda row: (row.elems, order[row.name]))
    return markdown(targets.table(known, CASES))


def exchange_block(folder: Path) -> list[str]:
    """Return the paragraphs on exchanges: targets, then a table for each place and part."""
    measured = ExchangeMeasurement.read(folder / "exchange.json")
    parts = [f"{measured.when_and_where}\n", markdown(exchange_tables.targets(measured))]
    parts += _captioned(exchange_tables.tables(measured))
    parts += [f"{exchange_tables.BUSY_NOTE}\n".replace("*", "\\*", 1)]
    return parts + [f"Not measured, {line}\n" for line in exchange_tables.omissions(measured)]


def schedule_block(folder: Path) -> list[str]:
    """Return the paragraphs on schedules: a table for each case and part, then targets."""
    measured = ScheduleMeasurement.read(folder / "schedule.json")
    table = schedule_tables.targets(measured)
    words = Counter(word for *_, word in table.lines)
    counted = ", ".join(f"{words[word]} {word}" for word in ("met", "missed", "not judged"))
    why = (
        "Not judged is what could show nothing: units whose bound is below "
        f"{LEAST_BOUND:.2f}, a trace where pairs of steps differ by more than is asked, turns of "
        "jobs that do not disturb each other.\n"
    )
    parts = [f"{measured.when_and_where}\n", *_captioned(schedule_tables.tables(measured))]
    parts += [f"Targets: {counted}.\n", markdown(table)]
    return parts + [why] * bool(words["not judged"])


def _captioned(tables: Sequence[Table]) -> list[str]:
    return [f"{table.caption}.\n\n{markdown(table)}" for table in tables if table.lines]


BLOCKS: dict[str, Callable[[Path], list[str]]] = {
    "kernels": kernels_block,
    "exchange": exchange_block,
    "schedule": schedule_block,
}
"""By the name of its comments and of the file: what it consists of."""


def block_of(name: str, folder: Path = MEASUREMENTS) -> str:
    """Return what stands between the two comments of a name.

    Args:
        name: Of `BLOCKS`.
        folder: Holds the file; without it, the block says so.

    Raises:
        ConfigError: The file holds no such measurement.
    """
    there = (folder / f"{name}.json").exists()
    return "\n".join(BLOCKS[name](folder)) if there else NONE_YET


def up_to_date(page: str, folder: Path = MEASUREMENTS) -> str:
    """Return the page's text with the figures that a folder holds."""
    for name in BLOCKS:
        page = with_block(page, name, block_of(name, folder))
    return page


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
