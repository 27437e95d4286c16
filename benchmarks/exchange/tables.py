"""Tables of a measurement, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.exchange.plan import BROADCAST, BY_NAME, GLOO_SUM, METHODS
from benchmarks.exchange.records import ExchangeMeasurement, Network, Row, Simulated
from benchmarks.exchange.targets import (
    BUSY_MARK,
    beside_dense,
    byte_ratio,
    floor_share,
    ms_cell,
    of_part,
    verdicts,
)
from compressa.link.texts import ms_text, size_text, spread_text
from compressa.testbed import LinkSpec
from harness.runner import Shown
from harness.tables import Table, table_of, verdicts_table

BUSY_NOTE = f"{BUSY_MARK} the machine's processors were busy for 90 % of the time or more."

_SHARE_FROM_BYTES = 1_000_000
_NONE = "-"


def describe(network: Network) -> str:
    """Say what a network is like."""
    return (
        f"{network.hosts} hosts, {network.link}: line rate {network.line_bytes_per_s / 1e6:.1f} "
        f"MB/s; a message {1e6 * network.message_s:.0f} us, a byte {1e9 * network.byte_s:.2f} ns, "
        f"to add a byte {1e9 * network.reduce_s:.2f} ns{spread_text(network.byte_spread)}"
    )


def omissions(measurement: ExchangeMeasurement) -> list[str]:
    """Say what was not measured, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for omitted in measurement.missing:
        size = "" if omitted.size_bytes is None else f" {size_text(omitted.size_bytes)}"
        link = "" if omitted.link is None else f" at {omitted.link}"
        what = f"{omitted.method}{size} on {omitted.hosts} hosts{link}"
        reason = "too long for --longest" if "one operation" in omitted.why else omitted.why
        reasons.setdefault(reason, []).append(what)
    return [f"{reason}: {'; '.join(several)}." for reason, several in reasons.items()]


def shown(measurement: ExchangeMeasurement) -> Shown:
    """Yield what was reached of what is asked, a table for each network and part, and the notes."""
    yield verdicts_table(verdicts(measurement), "hosts", "link")
    for network in measurement.from_slow_to_fast:
        yield times(network, measurement.rows)
    yield from part_tables(measurement)
    yield BUSY_NOTE
    for line in omissions(measurement):
        yield f"Not measured, {line}"


def times(network: Network, rows: Sequence[Row]) -> Table:
    """Show milliseconds by method and size, and the share of line rate."""
    here = [row for row in rows if (row.hosts, row.link) == (network.hosts, network.link)]
    here = of_part("sums", here)
    cells = {(row.method, row.size_bytes): _time(row) for row in here}
    sizes = {size: size_text(size) for size in sorted({row.size_bytes for row in here})}
    methods = [method.name for method in METHODS]
    return _grid(describe(network), "ms (of line rate)", methods, sizes, cells)


def _time(row: Row) -> str:
    return ms_cell(row, row.line_rate_share if row.size_bytes >= _SHARE_FROM_BYTES else None)


def _grid(
    caption: str,
    corner: str,
    methods: Iterable[str],
    columns: Mapping[int, str],
    cells: Mapping[tuple[str, int], str],
) -> Table:
    """A line for each method of which there is a cell, and a column for each key and its title."""
    lines = [
        (method, *(cells.get((method, key), _NONE) for key in columns))
        for method in methods
        if any((method, key) in cells for key in columns)
    ]
    return Table(caption, (corner, *columns.values()), lines)


def part_tables(measurement: ExchangeMeasurement) -> list[Table]:
    """Return a table for everything that was measured beside sums."""
    rows = sorted(measurement.rows, key=_order)
    tables = [
        *_compressed(of_part("compressed", rows)),
        *_server(of_part("server", rows)),
        *_broadcast(of_part("broadcast", rows)),
        *_transfer(of_part("transfer", rows)),
        *_striping(of_part("striping", rows)),
        *_hosts(of_part("hosts", rows)),
        *_simulated(measurement.simulated),
    ]
    return [table for table in tables if table.lines]


def _order(row: Row) -> tuple[int, float, int]:
    """By hosts, from slow links to fast ones, and as methods stand in their table."""
    rate = LinkSpec.parse(row.link).rate_bits_per_s
    return row.hosts, rate or math.inf, list(BY_NAME).index(row.method)


def _compressed(rows: Sequence[Row]) -> Iterator[Table]:
    titles = ("method", "ms", "speed-up over Gloo", "byte ratio", "of it")
    for network, here in _grouped(rows):
        size = size_text(here[0].size_bytes)
        lines = [(row.method, ms_cell(row), "", "", "") for row in here if row.by != "compressa"]
        for row, dense in beside_dense(here):
            speed_up, ratio = dense.median_s / row.median_s, byte_ratio(row, dense)
            figures = f"{speed_up:.2f}", f"{ratio:.2f}", f"{speed_up / ratio:.2f}"
            lines.append((row.method, ms_cell(row), *figures))
        yield Table(f"{size} of gradients, from values to means: {network}", titles, lines)


def _server(rows: Sequence[Row]) -> Iterator[Table]:
    for network, here in _grouped(rows):
        dense_s = next((row.median_s for row in here if row.method == GLOO_SUM.name), None)

        def over_gloo(row: Row, dense_s: float | None = dense_s) -> str:
            return _NONE if dense_s is None else f"{dense_s / row.median_s:.2f}"

        yield table_of(
            f"A value through a parameter server: {network}",
            here,
            {
                "method": lambda row: row.method,
                "ms": ms_cell,
                "floor ms": lambda row: ms_text(row.line_rate_share * row.median_s),
                "of the floor": lambda row: f"{row.line_rate_share:.2f}",
                "speed-up over Gloo": over_gloo,
            },
        )


def _broadcast(rows: Sequence[Row]) -> Iterator[Table]:
    networks = _grouped(rows)
    cells = {
        (row.method, number): f"{ms_cell(row)} ({floor_share(row):.2f})"
        for number, (_, here) in enumerate(networks)
        for row in here
    }
    columns = {number: network for number, (network, _) in enumerate(networks)}
    methods = [method.name for method in BROADCAST]
    yield _grid("Broadcasts", "ms (of the floor)", methods, columns, cells)


def _transfer(rows: Sequence[Row]) -> Iterator[Table]:
    for network, here in _grouped(rows):
        yield table_of(
            f"{size_text(here[0].size_bytes)} from host to host: {network}",
            here,
            {
                "method": lambda row: row.method,
                "ms": ms_cell,
                "p20": lambda row: ms_text(row.p20_s),
                "p80": lambda row: ms_text(row.p80_s),
                "rounds": lambda row: str(row.operations - 1),
            },
        )


def _striping(rows: Sequence[Row]) -> Iterator[Table]:
    for network, here in _grouped(rows):
        size, single_s = size_text(here[0].size_bytes), here[0].median_s
        caption = f"{size} over several connections, each limited: {network}"
        lines = [
            (_connections(row), ms_cell(row), f"{single_s / row.median_s:.2f}") for row in here
        ]
        yield Table(caption, ("connections", "ms", "speed-up"), lines)


def _connections(row: Row) -> str:
    return str(dict(BY_NAME[row.method].exchange)["connections"])


def _hosts(rows: Sequence[Row]) -> Iterator[Table]:
    for size_bytes in sorted({row.size_bytes for row in rows}):
        here = [row for row in rows if row.size_bytes == size_bytes]
        cells = {(row.method, row.hosts): f"{ms_cell(row)} ({_predicted(row)})" for row in here}
        yield _by_hosts(f"{size_text(size_bytes)} on more and more hosts, {here[0].link}", cells)


def _simulated(rows: Sequence[Simulated]) -> Iterator[Table]:
    if rows:
        cells = {
            (row.method, row.hosts): f"{ms_text(row.took_s)} ({ms_text(row.predicted_s)})"
            for row in rows
        }
        first = rows[0]
        yield _by_hosts(
            f"{size_text(first.size_bytes)} on a virtual clock, where a message takes "
            f"{1e6 * first.message_s:.0f} us and a byte {1e9 * first.byte_s:.0f} ns",
            cells,
        )


def _by_hosts(caption: str, cells: Mapping[tuple[str, int], str]) -> Table:
    columns = {hosts: f"{hosts:,}" for hosts in sorted({hosts for _, hosts in cells})}
    return _grid(caption, "ms (predicted)", dict.fromkeys(m for m, _ in cells), columns, cells)


def _grouped(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by where they were measured, and the size."""
    groups: dict[tuple[int, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.hosts, row.link, row.size_bytes), []).append(row)
    several = len({size for _, _, size in groups}) > 1
    return [
        (f"{hosts} hosts, {link}" + (f", {size_text(size)}" if several else ""), here)
        for (hosts, link, size), here in groups.items()
    ]


def _predicted(row: Row) -> str:
    return _NONE if row.predicted_s is None else ms_text(row.predicted_s)
