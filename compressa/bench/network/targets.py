"""What was reached of what is asked, worked out from rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from compressa.bench.network.methods import MAKERS, Maker, Verb
from compressa.bench.network.records import ExchangeMeasurement, Network, Row
from compressa.bench.network.texts import size_text

LEAST_LINE_SHARE, LINE_FROM_BYTES = 0.95, 4_000_000
AT_LINE_RATE = {"ring", "round_robin", "halving_doubling", "scatter_reduce", "all_gather"}
MOST_SLOWER, SLOWER_BELOW_BYTES = 2.0, 64 << 10
MOST_AUTO_SLOWER = 1.1
MOST_MEDIAN_ERROR, MOST_ERROR, ERROR_ABOVE_BYTES = 0.10, 0.25, 1_000_000
BUSY = 0.9
"""From this load on, the processors are the limit, and not the links."""

_MANY_HOSTS, _FAST_BITS_PER_S = 8, 1e9
_AUTO = "auto"


class Verdict(NamedTuple):
    """One target on one network.

    Attributes:
        target: What is asked.
        network: Where.
        reached: What the worst row has.
        asked: What it should have.
        at: Which row that is.
        met: Whether all have it; None where nothing can be said.
    """

    target: str
    network: Network
    reached: str
    asked: str
    at: str
    met: bool | None


def verdicts(measurement: ExchangeMeasurement) -> list[Verdict]:
    """Judge every network; what was not measured is not judged."""
    found: list[Verdict] = []
    for network in measurement.networks:
        place = (network.hosts, network.link)
        rows = [row for row in measurement.rows if (row.hosts, row.link) == place]
        found += _line_rate(network, rows, "all_reduce")
        found += _line_rate(network, rows, "all_gather")
        found += _small(network, rows)
        found += _auto(network, rows)
        found += _model(network, rows)
    return found


def is_busy(row: Row) -> bool:
    """Whether the processors were the limit of a row."""
    return row.load >= BUSY


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
    crowded = network.hosts >= _MANY_HOSTS and network.rate_bits_per_s >= _FAST_BITS_PER_S
    counted = [row for row in due if not (crowded and is_busy(row))]
    worst = min(counted or due, key=lambda row: row.line_rate_share)
    met = worst.line_rate_share >= LEAST_LINE_SHARE if counted else None
    left_out = f"; processors busy in {len(due) - len(counted)} of {len(due)} rows"
    at = _name(worst) + (left_out if len(counted) < len(due) else "")
    target = f"{verb}, of line rate"
    asked = f"{LEAST_LINE_SHARE:.2f}"
    yield Verdict(target, network, f"{worst.line_rate_share:.2f}", asked, at, met)


def _small(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Our own algorithms beside the best of the others."""
    small = [row for row in rows if row.size_bytes < SLOWER_BELOW_BYTES and row.method != _AUTO]
    ratios: list[tuple[float, Row]] = []
    for alike in _by_size(small):
        ours = _fastest(alike, ["compressa"])
        theirs = _fastest(alike, [maker for maker in MAKERS if maker != "compressa"])
        if ours and theirs:
            ratios.append((ours.median_s / theirs.median_s, ours))
    yield from _worst(network, "small, of Gloo and MPI", ratios, MOST_SLOWER)


def _auto(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """What the engine chooses beside what it can choose from: its own, and Gloo's."""
    ratios: list[tuple[float, Row]] = []
    for alike in _by_size(row for row in rows if row.verb == "all_reduce"):
        chosen = next((row for row in alike if row.method == _AUTO), None)
        best = _fastest((row for row in alike if row.method != _AUTO), ["compressa", "gloo"])
        if chosen and best:
            ratios.append((chosen.median_s / best.median_s, chosen))
    yield from _worst(network, "auto, of ours and Gloo", ratios, MOST_AUTO_SLOWER)


def _model(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    errors = [
        (row.error, row)
        for row in rows
        if row.error is not None and row.size_bytes > ERROR_ABOVE_BYTES
    ]
    if not errors:
        return
    middle = statistics.median(error for error, _ in errors)
    worst, row = max(errors, key=lambda pair: pair[0])
    for target, error, most, at in (
        ("model, median error", middle, MOST_MEDIAN_ERROR, f"{len(errors)} rows"),
        ("model, worst error", worst, MOST_ERROR, _name(row)),
    ):
        yield Verdict(target, network, f"{error:.0%}", f"< {most:.0%}", at, error < most)


def _worst(
    network: Network, target: str, ratios: Sequence[tuple[float, Row]], most: float
) -> Iterator[Verdict]:
    if ratios:
        ratio, row = max(ratios, key=lambda pair: pair[0])
        yield Verdict(target, network, f"{ratio:.2f}", f"{most:.1f}", _name(row), ratio <= most)


def _by_size(rows: Iterable[Row]) -> list[list[Row]]:
    """Group what does the same with as many bytes."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.verb, row.size_bytes), []).append(row)
    return list(groups.values())


def _fastest(rows: Iterable[Row], makers: Sequence[Maker]) -> Row | None:
    found = [row for row in rows if row.by in makers]
    return min(found, key=lambda row: row.median_s, default=None)


def _name(row: Row) -> str:
    return f"{row.method}, {size_text(row.size_bytes)}"
