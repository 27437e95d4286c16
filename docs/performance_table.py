# python docs/performance_table.py
"""Write the figures of docs/performance.md from the committed measurements.

Everything between `<!-- kernels:begin -->` and `<!-- kernels:end -->` comes from the files that
`compressa bench kernels --json docs/measurements/kernels.json` leaves; targets are those of
`compressa.bench.CASES`. Several files, one for each size perhaps, are taken together. What stands
between `<!-- exchange:begin -->` and its end comes from the file that
`compressa bench exchange --json docs/measurements/exchange.json` leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from compressa.bench import CASES, Measurement, Row, read, scaling, targets
from compressa.bench.network import records, tables
from compressa.bench.network.part_tables import part_tables

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "performance.md"
MEASUREMENTS = DOCS / "measurements"
NONE_YET = "No measurement is committed yet.\n"


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
    dates = sorted({f"{h.timestamp:%Y-%m-%d}" for h in headers})
    return (
        f"Measured {' to '.join(sorted({dates[0], dates[-1]}))} on {' and '.join(sorted(machines))}"
        f"; {', '.join(sorted(versions))}.\n"
    )


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
    versions = ", ".join(f"{name} {text}" for name, text in sorted(head.versions.items()))
    machine = f"{head.cpu}, {head.cores} cores, {head.system}"
    parts = [f"Measured {head.timestamp:%Y-%m-%d} on {machine}; {versions}.\n"]
    numbers = tables.TARGET_NUMBERS
    titles = (*tables.TARGET_TITLES[:-1], "target met")
    parts.append(_markdown(titles, numbers, tables.targets(measurement)))
    for network in measurement.networks:
        titles, cells = tables.times(network, measurement.rows)
        if cells:
            parts += [tables.describe(network) + ".\n", _markdown(titles, set(titles[1:]), cells)]
    for part in part_tables(measurement):
        parts += [part.caption + ".\n", _markdown(part.titles, set(part.titles[1:]), part.lines)]
    parts += [f"{tables.BUSY_NOTE}\n".replace("*", "\\*", 1)]
    parts += [f"Not measured, {line}\n" for line in tables.omissions(measurement)]
    return "\n".join(parts)


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


def main() -> None:
    """Bring the page up to date."""
    text = with_figures(PAGE.read_text(encoding="utf-8"), figures_block())
    PAGE.write_text(with_figures(text, exchange_block(), "exchange"), encoding="utf-8")


if __name__ == "__main__":
    main()
