"""What a measurement shows: times beside peers and targets, small work, and how times grow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from benchmarks.kernels.cases import Case
from benchmarks.kernels.launches import LAUNCHES
from benchmarks.kernels.records import Measurement, Row
from benchmarks.kernels.scaling import MOST_FIXED_US, SMALL_ELEMS
from benchmarks.kernels.table import CASES, cases_on
from harness.runner import Shown
from harness.tables import WORDS, Table, table_of

_CASE = ("case", "elements", "ms (p20 to p80)", "of the limit")
_PEER = ("peer", "peer ms", "faster")
_NUMBERS = frozenset((*_CASE[1:], *_PEER[1:]))


def shown(measured: Measurement) -> Shown:
    """Yield the yardstick's table, those of cases and launches, of fixed costs and of growth."""
    rows = measured.rows
    yield yardstick(rows)
    cases = {case.name: case for case in (*CASES, *cases_on("cuda"))}
    yield times(rows, list(cases.values()))
    yield launches(rows)
    yield fixed_costs(rows)
    yield growth(rows)


def yardstick(rows: Sequence[Row]) -> Table:
    """Show bandwidth at the sizes of cases: smaller ones say more of caches than of memory."""
    sizes = {row.elems for row in rows if row.benchmark == "kernels" and row.metric == "time"}
    found = [row for row in rows if row.metric == "bandwidth" and row.elems in sizes]
    return table_of(
        "",
        sorted(found, key=lambda row: row.elems),
        {
            "elements": lambda row: f"{row.elems:,}",
            "threads": lambda row: str(row.threads),
            "yardstick GB/s": lambda row: f"{row.median:.1f}",
            "p20": lambda row: f"{row.p20:.1f}",
            "p80": lambda row: f"{row.p80:.1f}",
        },
        frozenset({"elements", "threads", "yardstick GB/s", "p20", "p80"}),
    )


def times(rows: Sequence[Row], cases: Sequence[Case]) -> Table:
    """Show rows by size, in the order of the cases.

    What belongs to a case is said in the first of its rows only; the others have peers.
    """
    known = {case.name: (order, case) for order, case in enumerate(cases)}
    found = [row for row in rows if row.benchmark == "kernels" and row.name in known]
    found.sort(key=lambda row: (row.elems, known[row.name][0]))
    lines = []
    for _, group in groupby(found, key=lambda row: row.case):
        for i, row in enumerate(group):
            case = known[row.name][1]
            own = _own(case, row)
            lines.append((("",) * len(own) if i else own) + _beside(case, row))
    return Table("", (*_CASE, *_PEER, "target"), lines, _NUMBERS)


def met(case: Case, row: Row) -> bool | None:
    """Return whether a row meets every target that applies to it; None if none does."""
    asked = (
        (case.least_share.on(row.device), row.limit_ratio),
        (_least_speedup(case, row), row.speedup),
    )
    verdicts = [r >= least for least, r in asked if least is not None and r is not None]
    return all(verdicts) if verdicts else None


def _own(case: Case, row: Row) -> tuple[str, ...]:
    spread = f"{row.median:.2f} ({row.p20:.2f} to {row.p80:.2f})"
    return row.name, f"{row.elems:,}", spread, _share(case, row)


def _share(case: Case, row: Row) -> str:
    if row.limit_ratio is None:
        return "-"
    least_share = case.least_share.on(row.device)
    target = "" if least_share is None else f" of {least_share:.2f}"
    return f"{row.limit_ratio:.2f}{target}" + (" cache-resident" if row.limit_ratio > 1 else "")


def _beside(case: Case, row: Row) -> tuple[str, ...]:
    reached = met(case, row)
    verdict = "" if reached is None else WORDS[reached]
    if row.peer_median is None or row.speedup is None:
        return row.peer or "-", "-", "-", verdict
    speedup = _speedup(row.speedup, _least_speedup(case, row))
    return row.peer or "-", f"{row.peer_median:.2f}", speedup, verdict


def _speedup(speedup: float, least: float | None) -> str:
    """Say it as the target does: so many times faster, or at most so many times as long."""
    if least is not None and least < 1:
        return f"{1 / speedup:.2f} as long, of {1 / least:.2f}"
    return f"{speedup:.2f}" + ("" if least is None else f" of {least:.0f}")


def _least_speedup(case: Case, row: Row) -> float | None:
    peer = next((peer for peer in case.peers if peer.name == row.peer), None)
    return None if peer is None else peer.least_speedup.on(row.device)


def launches(rows: Sequence[Row]) -> Table:
    """Show what small work costs a GPU."""
    known = {case.name: case for case in LAUNCHES}
    return table_of(
        "",
        [row for row in rows if row.benchmark == "kernels-launch" and row.name in known],
        {
            "case": lambda row: row.name,
            "elements": lambda row: f"{row.elems:,}",
            "us (p20 to p80)": lambda row: f"{row.median:.1f} ({row.p20:.1f} to {row.p80:.1f})",
            "asked": lambda row: known[row.name].target(row),
            "target": lambda row: WORDS[known[row.name].met(row)],
        },
        frozenset({"elements", "us (p20 to p80)"}),
    )


def fixed_costs(rows: Sequence[Row]) -> Table:
    """Show what a call on `SMALL_ELEMS` elements takes."""
    what = f"microseconds on {SMALL_ELEMS:,} elements"
    return table_of(
        "",
        [row for row in rows if row.benchmark == "kernels-fixed-cost"],
        {
            "case": lambda row: row.name,
            what: lambda row: f"{row.median:.1f}",
            f"at most {MOST_FIXED_US:.0f}": lambda row: WORDS[row.median <= MOST_FIXED_US],
        },
        frozenset({what}),
    )


def growth(rows: Sequence[Row]) -> Table:
    """Show nanoseconds per element, a line per case and a column per size: level if linear."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.benchmark == "kernels-scaling":
            found.setdefault(row.name, {})[row.elems] = 1e3 * row.median / row.elems
    sizes = sorted({elems for line in found.values() for elems in line})
    columns = [f"{elems:.0e}".replace("e+0", "e") for elems in sizes]
    lines = [
        (name, *(f"{line[elems]:.2f}" if elems in line else "-" for elems in sizes))
        for name, line in found.items()
    ]
    return Table("", ("ns per element at", *columns), lines)
