"""Time per element of each compressor's kernels, from the committed rows."""

from __future__ import annotations

from functools import cache

from benchmarks.kernels.records import Measurement, Row
from compressa.compressors import COMPRESSORS
from website.charts import Bar, bars
from website.committed import MEASUREMENTS

_NAMES = {"chunked topk": "chunked_topk"}
"""What a case begins with, where that is not the compressor's name."""


@cache
def measurement() -> Measurement:
    """Read the committed file."""
    return Measurement.read(MEASUREMENTS / "kernels.json")


@cache
def rows_of(name: str) -> list[Row]:
    """Return a compressor's cases at the largest number of elements, a row for each peer."""
    timed = [row for row in measurement().rows if row.benchmark == "kernels"]
    own = [row for row in timed if row.metric == "time" and compressor_of(row) == name]
    largest = max((row.elems for row in own), default=0)
    return [row for row in own if row.elems == largest]


def compressor_of(row: Row) -> str:
    """Return the name of the compressor that a case is of."""
    for begin, name in _NAMES.items():
        if row.name.startswith(begin):
            return name
    first = row.name.split()[0]
    return first if first in COMPRESSORS else ""


def element_ns(row: Row, median: float | None = None) -> float:
    """Return nanoseconds per element of a case, or of a peer's median beside it."""
    scale = {"ms": 1e6, "us": 1e3}[row.unit]
    return scale * (row.median if median is None else median) / row.elems


def drawn(name: str) -> str:
    """Return bars of a compressor's cases and their peers; nothing if it has none."""
    shown, known = [], set()
    for row in rows_of(name):
        if row.case not in known:
            own_ns = element_ns(row)
            shown.append(Bar(row.name, [(own_ns, "s0")], f"{own_ns:.2f} ns"))
        known.add(row.case)
        if row.peer_median is not None:
            peer_ns = element_ns(row, row.peer_median)
            shown.append(Bar(str(row.peer), [(peer_ns, "context")], f"{peer_ns:.2f} ns"))
    if not shown:
        return ""
    first = rows_of(name)[0]
    caption = (
        f"Nanoseconds per element, {first.elems:,} elements, {first.threads} threads; "
        f"grey: the same by other means. {measurement().when_and_where} "
    )
    return bars(shown, f"Time per element of {name}", caption)
