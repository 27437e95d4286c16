"""Rows: chosen, grouped, named and set beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.exchange.method import MAKERS, Maker
from benchmarks.exchange.records import Network, Row
from benchmarks.targets import Verdict
from compressa.link.texts import ms_text, size_text

BUSY = 0.9
"""From this load on, the processors are the limit, and not the links."""

BUSY_MARK = "*"

FAST_BITS_PER_S = 1e9
_MANY_HOSTS = 8


def is_busy(row: Row) -> bool:
    """Whether the processors were the limit of a row."""
    return row.load >= BUSY


def is_fast(network: Network) -> bool:
    """Whether links carry 1 Gbit/s or more."""
    return (network.rate_bits_per_s or float("inf")) >= FAST_BITS_PER_S


def is_excused(network: Network, row: Row) -> bool:
    """Whether a row says nothing of links: many hosts on fast ones, and processors without time."""
    return network.hosts >= _MANY_HOSTS and is_fast(network) and is_busy(row)


def of_part(part: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a part."""
    return [row for row in rows if row.part == part]


def fastest(rows: Iterable[Row], makers: Sequence[Maker]) -> Row | None:
    """Return the fastest row of some makers."""
    found = [row for row in rows if row.by in makers]
    return min(found, key=lambda row: row.median_s, default=None)


def by_size(rows: Iterable[Row]) -> list[list[Row]]:
    """Group what does the same with as many bytes."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.verb, row.size_bytes), []).append(row)
    return list(groups.values())


def beside_others(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Pair the fastest of ours with the fastest of all others that do the same."""
    pairs = [
        (fastest(alike, ["compressa"]), fastest(alike, [m for m in MAKERS if m != "compressa"]))
        for alike in by_size(rows)
    ]
    return [(ours, theirs) for ours, theirs in pairs if ours and theirs]


def worst(
    network: Network, target: str, pairs: Sequence[tuple[Row, Row]], most: float
) -> Iterator[Verdict]:
    """Judge the largest ratio of a row's time to that of the one it is compared with."""
    if pairs:
        row, other = max(pairs, key=lambda pair: pair[0].median_s / pair[1].median_s)
        ratio = row.median_s / other.median_s
        at = name_of(row, beside=other)
        yield Verdict(target, network.where, f"{ratio:.2f}", f"{most:.1f}", at, ratio <= most)


def name_of(row: Row, *, beside: Row | None = None) -> str:
    """Name a row by its method and size, and what it is compared with."""
    name = f"{row.method}, {size_text(row.size_bytes)}"
    return name if beside is None else f"{name}, beside {beside.method}"


def ms_cell(row: Row, share: float | None = None) -> str:
    """Write a row's milliseconds, the share of what was possible, and whether it was busy."""
    of = "" if share is None else f" ({share:.2f})"
    return ms_text(row.median_s) + of + (BUSY_MARK if is_busy(row) else "")
