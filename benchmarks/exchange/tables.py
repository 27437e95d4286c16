"""Tables of a measurement, as cells of text: for the command line and for the page alike."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.exchange.methods import METHODS
from benchmarks.exchange.part_tables import part_tables
from benchmarks.exchange.records import ExchangeMeasurement, Network, Row
from benchmarks.exchange.targets import verdicts
from benchmarks.exchange.verdict import BUSY_MARK, ms_cell, of_part
from benchmarks.tables import Table
from benchmarks.targets import table as targets_table
from compressa.link.texts import size_text, spread_text

BUSY_NOTE = f"{BUSY_MARK} the machine's processors were busy for 90 % of the time or more."

_SHARE_FROM_BYTES = 1_000_000


def describe(network: Network) -> str:
    """Say what a network is like."""
    return (
        f"{network.hosts} hosts, {network.link}: line rate {network.line_bytes_per_s / 1e6:.1f} "
        f"MB/s; a message {1e6 * network.message_s:.0f} us, a byte {1e9 * network.byte_s:.2f} ns, "
        f"to add a byte {1e9 * network.reduce_s:.2f} ns{spread_text(network.byte_spread)}"
    )


def tables(measurement: ExchangeMeasurement) -> list[Table]:
    """Return all of them, some without lines."""
    networks = measurement.from_slow_to_fast
    return [*(times(network, measurement.rows) for network in networks), *part_tables(measurement)]


def times(network: Network, rows: Sequence[Row]) -> Table:
    """Show milliseconds by method and size, and the share of line rate."""
    here = [row for row in rows if (row.hosts, row.link) == (network.hosts, network.link)]
    here = of_part("sums", here)
    sizes = sorted({row.size_bytes for row in here})
    found = {(row.method, row.size_bytes): row for row in here}
    lines = [
        (method.name, *(_cell(found.get((method.name, size))) for size in sizes))
        for method in METHODS
        if any((method.name, size) in found for size in sizes)
    ]
    return Table(describe(network), ("ms (of line rate)", *map(size_text, sizes)), lines)


def targets(measurement: ExchangeMeasurement) -> Table:
    """Show what was reached of what is asked."""
    return targets_table(verdicts(measurement), "hosts", "link")


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


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return ms_cell(row, row.line_rate_share if row.size_bytes >= _SHARE_FROM_BYTES else None)
