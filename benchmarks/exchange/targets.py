"""What was reached of what is asked, worked out from rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.exchange.method import MAKERS, Maker, Verb
from benchmarks.exchange.plan import BY_NAME, GLOO_SUM
from benchmarks.exchange.records import ExchangeMeasurement, Network, Row
from benchmarks.exchange.sums import AUTO
from compressa.link.texts import ms_text, size_text
from harness.tables import Target, Verdict

BUSY = 0.9
"""From this load on, the processors are the limit, and not the links."""

BUSY_MARK = "*"

FAST_BITS_PER_S = 1e9
_MANY_HOSTS = 8

LINE_RATES = {
    verb: Target(f"{verb}, of line rate", 0.95, least=True) for verb in ("all_reduce", "all_gather")
}
AT_LINE_RATE = {"ring", "round_robin", "halving_doubling", "all_gather"}
LINE_FROM_BYTES = 4_000_000
SMALL = Target("small, of Gloo and MPI", 2.0, asked="{:.1f}")
SMALL_BELOW_BYTES = 64 << 10
CHOSEN = Target("auto, of ours and Gloo", 1.1, asked="{:.1f}")
MEDIAN_ERROR = Target("formula, median error", 0.10, shown="{:.0%}", asked="< {:.0%}")
WORST_ERROR = Target("formula, worst error", 0.25, shown="{:.0%}", asked="< {:.0%}")
CALIBRATED_ERROR = Target("what auto goes by, worst error", 0.25, shown="{:.0%}", asked="< {:.0%}")
ERROR_ABOVE_BYTES = 1_000_000
SPEEDUP = Target("compressed, speed-up over Gloo", least=True)
COMPRESSED = ("int8", "int4")
LEAST_OF_RATIO, LEAST_OF_RATIO_FAST = 0.85, 0.7
BROADCAST = Target("broadcast from 4, of the floor", 0.95, least=True)
BROADCAST_FROM_BYTES = 100_000_000
SEVERAL = "auto from 4"
TRANSFER = Target("transfer, of the fastest other", 1.0)


def verdicts(measurement: ExchangeMeasurement) -> list[Verdict]:
    """Judge every network; what was not measured is not judged."""
    found: list[Verdict] = []
    for network in measurement.from_slow_to_fast:
        known = (network.hosts, network.link)
        rows = [row for row in measurement.rows if (row.hosts, row.link) == known]
        sums = of_part("sums", rows)
        found += _line_rate(network, sums, "all_reduce")
        found += _line_rate(network, sums, "all_gather")
        found += _small(network, sums)
        found += _auto(network, sums)
        found += _model(network, sums + of_part("hosts", rows))
        found += _of_compressed(network, of_part("compressed", rows))
        found += _of_broadcast(network, of_part("broadcast", rows))
        found += _of_transfer(network, of_part("transfer", rows))
    return found


def _line_rate(network: Network, rows: Sequence[Row], verb: Verb) -> Iterator[Verdict]:
    """On shaped links; many hosts on fast ones count while the processors have time."""
    due = [
        row
        for row in rows
        if row.method in AT_LINE_RATE and row.verb == verb and row.size_bytes >= LINE_FROM_BYTES
    ]
    if network.rate_bits_per_s is None or not due:
        return
    counted = [row for row in due if not is_excused(network, row)]
    least = min(counted or due, key=lambda row: row.line_rate_share)
    left_out = f"; processors busy in {len(due) - len(counted)} of {len(due)} rows"
    at = name_of(least) + (left_out if len(counted) < len(due) else "")
    verdict = LINE_RATES[verb].judged(network.where, least.line_rate_share, at)
    yield verdict if counted else verdict._replace(met=None)


def _small(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Our own algorithms beside the best of the others."""
    small = [row for row in rows if row.size_bytes < SMALL_BELOW_BYTES and row.method != AUTO]
    yield from _worst(network, SMALL, beside_others(small))


def _auto(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """What the engine chooses beside what it can choose from: its own, and Gloo's."""
    pairs: list[tuple[Row, Row]] = []
    for alike in by_size(row for row in rows if row.verb == "all_reduce"):
        chosen = next((row for row in alike if row.method == AUTO), None)
        best = fastest((row for row in alike if row.method != AUTO), ["compressa", "gloo"])
        if chosen and best:
            pairs.append((chosen, best))
    yield from _worst(network, CHOSEN, pairs)


def _worst(network: Network, target: Target, pairs: Sequence[tuple[Row, Row]]) -> Iterator[Verdict]:
    """Judge the largest ratio of a row's time to that of the one it is compared with."""
    if pairs:
        row, other = max(pairs, key=lambda pair: pair[0].median_s / pair[1].median_s)
        at = name_of(row, beside=other)
        yield target.judged(network.where, row.median_s / other.median_s, at)


def _model(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    large = [row for row in rows if row.size_bytes > ERROR_ABOVE_BYTES]
    errors = [(row.error, row) for row in large if row.error is not None]
    if errors:
        middle = statistics.median(error for error, _ in errors)
        yield MEDIAN_ERROR.judged(network.where, middle, f"{len(errors)} rows")
    calibrated = [(row.calibrated_error, row) for row in large if row.calibrated_error is not None]
    for target, found in ((WORST_ERROR, errors), (CALIBRATED_ERROR, calibrated)):
        if found:
            largest, row = max(found, key=lambda pair: pair[0])
            yield target.judged(network.where, largest, name_of(row))


def _of_compressed(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """The time saved, as a share of the bytes saved."""
    share = LEAST_OF_RATIO_FAST if is_fast(network) else LEAST_OF_RATIO
    for row, dense in beside_dense(rows):
        if row.method in COMPRESSED:
            reached, asked = dense.median_s / row.median_s, byte_ratio(row, dense) * share
            yield SPEEDUP.judged(network.where, reached, name_of(row), asked)


def beside_dense(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Pair compressed rows with Gloo's float32 sum of as many gradients."""
    dense = {row.size_bytes: row for row in rows if row.method == GLOO_SUM.name}
    return [
        (row, dense[row.size_bytes])
        for row in rows
        if row.by == "compressa" and row.size_bytes in dense
    ]


def byte_ratio(row: Row, dense: Row) -> float:
    """How many times fewer bytes pass the busiest port."""
    return dense.formula_bytes / row.formula_bytes


def _of_broadcast(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """What is chosen where there are several sources."""
    large = [row for row in rows if row.size_bytes >= BROADCAST_FROM_BYTES]
    best = fastest((row for row in large if row.method == SEVERAL), ["compressa"])
    if best is not None:
        verdict = BROADCAST.judged(network.where, floor_share(best), name_of(best))
        yield verdict._replace(met=None) if is_excused(network, best) else verdict


def floor_share(row: Row) -> float:
    """The time of the fewest bytes at line rate, over the time taken."""
    floor_bytes = BY_NAME[row.method].needs(row.size_bytes, row.hosts).floor_bytes
    return row.line_rate_share * floor_bytes / row.formula_bytes


def _of_transfer(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Ours beside the fastest of the others, all with their default settings; to two digits."""
    for ours, theirs in beside_others(row for row in rows if not BY_NAME[row.method].exchange):
        ratio = round(ours.median_s / theirs.median_s, 2)
        yield TRANSFER.judged(network.where, ratio, name_of(ours, beside=theirs))


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
    """Return the fastest row of some makers; None if they have none."""
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


def name_of(row: Row, *, beside: Row | None = None) -> str:
    """Name a row by its method and size, and what it is compared with."""
    name = f"{row.method}, {size_text(row.size_bytes)}"
    return name if beside is None else f"{name}, beside {beside.method}"


def ms_cell(row: Row, share: float | None = None) -> str:
    """Write a row's milliseconds, the share of what was possible, and whether it was busy."""
    of = "" if share is None else f" ({share:.2f})"
    return ms_text(row.median_s) + of + (BUSY_MARK if is_busy(row) else "")
