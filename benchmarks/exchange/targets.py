"""What was reached of what is asked, worked out from rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.exchange import part_targets
from benchmarks.exchange.method import Verb
from benchmarks.exchange.records import ExchangeMeasurement, Network, Row
from benchmarks.exchange.sums import AUTO
from benchmarks.exchange.verdict import (
    beside_others,
    by_size,
    fastest,
    is_excused,
    name_of,
    of_part,
    worst,
)
from benchmarks.targets import Verdict

LEAST_LINE_SHARE, LINE_FROM_BYTES = 0.95, 4_000_000
AT_LINE_RATE = {"ring", "round_robin", "halving_doubling", "scatter_reduce", "all_gather"}
MOST_SLOWER, SLOWER_BELOW_BYTES = 2.0, 64 << 10
MOST_AUTO_SLOWER = 1.1
MOST_MEDIAN_ERROR, MOST_ERROR, ERROR_ABOVE_BYTES = 0.10, 0.25, 1_000_000


def verdicts(measurement: ExchangeMeasurement) -> list[Verdict]:
    """Judge every network; what was not measured is not judged."""
    found: list[Verdict] = []
    for network in measurement.from_slow_to_fast:
        place = (network.hosts, network.link)
        rows = [row for row in measurement.rows if (row.hosts, row.link) == place]
        sums = of_part("sums", rows)
        found += _line_rate(network, sums, "all_reduce")
        found += _line_rate(network, sums, "all_gather")
        found += _small(network, sums)
        found += _auto(network, sums)
        found += _model(network, sums + of_part("hosts", rows))
        found += part_targets.compressed(network, of_part("compressed", rows))
        found += part_targets.broadcast(network, of_part("broadcast", rows))
        found += part_targets.transfer(network, of_part("transfer", rows))
    return found


def _line_rate(network: Network, rows: Sequence[Row], verb: Verb) -> Iterator[Verdict]:
    """On shaped links; many hosts on fast ones count while the processors have time."""
    if network.rate_bits_per_s is None:
        return
    due = [
        row
        for row in rows
        if row.method in AT_LINE_RATE and row.verb == verb and row.size_bytes >= LINE_FROM_BYTES
    ]
    if not due:
        return
    counted = [row for row in due if not is_excused(network, row)]
    least = min(counted or due, key=lambda row: row.line_rate_share)
    met = least.line_rate_share >= LEAST_LINE_SHARE if counted else None
    left_out = f"; processors busy in {len(due) - len(counted)} of {len(due)} rows"
    at = name_of(least) + (left_out if len(counted) < len(due) else "")
    target = f"{verb}, of line rate"
    asked = f"{LEAST_LINE_SHARE:.2f}"
    yield Verdict(target, network.where, f"{least.line_rate_share:.2f}", asked, at, met)


def _small(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Our own algorithms beside the best of the others."""
    small = [row for row in rows if row.size_bytes < SLOWER_BELOW_BYTES and row.method != AUTO]
    yield from worst(network, "small, of Gloo and MPI", beside_others(small), MOST_SLOWER)


def _auto(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """What the engine chooses beside what it can choose from: its own, and Gloo's."""
    pairs: list[tuple[Row, Row]] = []
    for alike in by_size(row for row in rows if row.verb == "all_reduce"):
        chosen = next((row for row in alike if row.method == AUTO), None)
        best = fastest((row for row in alike if row.method != AUTO), ["compressa", "gloo"])
        if chosen and best:
            pairs.append((chosen, best))
    yield from worst(network, "auto, of ours and Gloo", pairs, MOST_AUTO_SLOWER)


def _model(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    errors = [
        (row.error, row)
        for row in rows
        if row.error is not None and row.size_bytes > ERROR_ABOVE_BYTES
    ]
    if not errors:
        return
    middle = statistics.median(error for error, _ in errors)
    largest, row = max(errors, key=lambda pair: pair[0])
    for target, error, most, at in (
        ("model, median error", middle, MOST_MEDIAN_ERROR, f"{len(errors)} rows"),
        ("model, worst error", largest, MOST_ERROR, name_of(row)),
    ):
        yield Verdict(target, network.where, f"{error:.0%}", f"< {most:.0%}", at, error < most)
