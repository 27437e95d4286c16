"""Which targets hold for a row, and the words in which tables say so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from benchmarks.kernels.cases import Case
from benchmarks.kernels.records import Row
from benchmarks.targets import WORDS
from harness.tables import Table

_CASE = ("case", "elements", "ms (p20 to p80)", "of the limit")
_PEER = ("peer", "peer ms", "faster")
_NUMBERS = frozenset((*_CASE[1:], *_PEER[1:]))


def met(case: Case, row: Row) -> bool | None:
    """Return whether a row meets every target that applies to it; None if none does."""
    verdicts = []
    least_share = case.least_share(row.device)
    if least_share is not None and row.limit_ratio is not None:
        verdicts.append(row.limit_ratio >= least_share)
    least_speedup = _least_speedup(case, row)
    if least_speedup is not None and row.speedup is not None:
        verdicts.append(row.speedup >= least_speedup)
    return all(verdicts) if verdicts else None


def table(rows: Sequence[Row], cases: Sequence[Case]) -> Table:
    """Show rows; what belongs to the case is said in its first row only."""
    known = {case.name: case for case in cases}
    times = [row for row in rows if row.benchmark == "kernels" and row.name in known]
    lines = []
    for _, group in groupby(times, key=lambda row: row.case):
        for i, row in enumerate(group):
            own, beside = _own(known[row.name], row), _beside(known[row.name], row)
            lines.append(((*own,) if i == 0 else ("",) * len(own)) + beside)
    return Table("", (*_CASE, *_PEER, "target"), lines, _NUMBERS)


def _own(case: Case, row: Row) -> tuple[str, str, str, str]:
    spread = f"{row.median:.2f} ({row.p20:.2f} to {row.p80:.2f})"
    return row.name, f"{row.elems:,}", spread, _share(case, row)


def _share(case: Case, row: Row) -> str:
    if row.limit_ratio is None:
        return "-"
    least_share = case.least_share(row.device)
    target = "" if least_share is None else f" of {least_share:.2f}"
    return f"{row.limit_ratio:.2f}{target}" + (" cache-resident" if row.limit_ratio > 1 else "")


def _beside(case: Case, row: Row) -> tuple[str, str, str, str]:
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
    return None if peer is None else peer.least_on(row.device)
