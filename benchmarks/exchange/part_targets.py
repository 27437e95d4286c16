"""What is asked of compressed gradients, of broadcasts and of transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.exchange.methods import BY_NAME, GLOO_SUM
from benchmarks.exchange.records import Network, Row
from benchmarks.exchange.verdict import (
    beside_others,
    fastest,
    is_excused,
    is_fast,
    name_of,
)
from benchmarks.targets import Verdict

COMPRESSED = ("int8", "int4")
LEAST_OF_RATIO, LEAST_OF_RATIO_FAST = 0.85, 0.7
LEAST_FLOOR_SHARE, FLOOR_FROM_BYTES = 0.95, 100_000_000
SEVERAL = "auto from 4"
MOST_OF_FASTEST = 1.0


def compressed(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """The time saved, as a share of the bytes saved."""
    for row, dense in beside_dense(rows):
        if row.method in COMPRESSED:
            ratio = byte_ratio(row, dense)
            asked = ratio * (LEAST_OF_RATIO_FAST if is_fast(network) else LEAST_OF_RATIO)
            reached = dense.median_s / row.median_s
            target = "compressed, speed-up over Gloo"
            yield Verdict(
                target,
                network.where,
                f"{reached:.2f}",
                f"{asked:.2f}",
                name_of(row),
                reached >= asked,
            )


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


def broadcast(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """What is chosen where there are several sources."""
    large = [row for row in rows if row.size_bytes >= FLOOR_FROM_BYTES]
    best = fastest((row for row in large if row.method == SEVERAL), ["compressa"])
    if best is not None:
        share = floor_share(best)
        met = None if is_excused(network, best) else share >= LEAST_FLOOR_SHARE
        asked, target = f"{LEAST_FLOOR_SHARE:.2f}", "broadcast from 4, of the floor"
        yield Verdict(target, network.where, f"{share:.2f}", asked, name_of(best), met)


def floor_share(row: Row) -> float:
    """The time of the fewest bytes at line rate, over the time taken."""
    floor_bytes = BY_NAME[row.method].floor_bytes(row.size_bytes, row.hosts)
    return row.line_rate_share * floor_bytes / row.formula_bytes


def transfer(network: Network, rows: Sequence[Row]) -> Iterator[Verdict]:
    """Ours beside the fastest of the others, all with their default settings; to two digits."""
    for ours, theirs in beside_others(row for row in rows if not BY_NAME[row.method].exchange):
        ratio = round(ours.median_s / theirs.median_s, 2)
        at = name_of(ours, beside=theirs)
        target, asked = "transfer, of the fastest other", f"{MOST_OF_FASTEST:.2f}"
        yield Verdict(target, network.where, f"{ratio:.2f}", asked, at, ratio <= MOST_OF_FASTEST)
