"""Plots of `benchmarks exchange`: sums and gathers by size, and what else hosts exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.exchange.plan import BY_NAME
from benchmarks.exchange.records import ExchangeMeasurement, Network, Row
from benchmarks.exchange.tables import describe
from benchmarks.exchange.targets import by_size, fastest, of_part, verdicts
from compressa.link.texts import ms_text, size_text
from website.charts import Bar, Curve, bars, plot, style

__all__ = ["ExchangeMeasurement", "drawn", "verdicts"]

_MAKERS = {"compressa": "s0", "gloo": "s1", "mpi": "s2", "ray": "s3"}
_LEGEND = tuple(_MAKERS.items())
_PARTS = {
    "compressed": "Gradients from values to means",
    "server": "A value through a parameter server",
    "broadcast": "Broadcasts",
    "transfer": "From host to host",
    "striping": "Over several connections",
}


def drawn(measured: ExchangeMeasurement) -> Iterator[str]:
    """Yield headings and figures."""
    yield "### Sums and gathers\n"
    for network in measured.from_slow_to_fast:
        rows = [r for r in measured.rows if (r.hosts, r.link) == (network.hosts, network.link)]
        for verb in ("all_reduce", "all_gather"):
            same = [row for row in of_part("sums", rows) if row.verb == verb]
            if len({row.size_bytes for row in same}) > 2:
                yield _by_size(network, verb, same)
    for part, title in _PARTS.items():
        yield f"### {title}\n"
        for where, rows in _by_network(of_part(part, measured.rows)).items():
            yield _beside(f"{title}: {where}", rows)
    yield "### More and more hosts\n"
    yield from _by_hosts(measured)


def _by_size(network: Network, verb: str, rows: Sequence[Row]) -> str:
    """Draw times by size as multiples of the fastest; ours that never win among ours are grey."""
    ours = [row for row in rows if row.by == "compressa"]
    best = {row.method for alike in by_size(ours) if (row := fastest(alike, ["compressa"]))}
    least = {alike[0].size_bytes: min(row.median_s for row in alike) for alike in by_size(rows)}
    grey: list[Curve] = []
    curves: list[Curve] = []
    for method in dict.fromkeys(row.method for row in rows):
        own = sorted((r for r in rows if r.method == method), key=lambda row: row.size_bytes)
        points = [(float(r.size_bytes), r.median_s / least[r.size_bytes]) for r in own]
        hints = [f"{method}, {size_text(r.size_bytes)}: {ms_text(r.median_s)} ms" for r in own]
        if method in best or BY_NAME[method].by != "compressa":
            curves.append(Curve(method, points, style(len(curves)), labels=hints))
        else:
            grey.append(Curve("", points, "context", labels=hints))
    what = f"{verb} by size, {network.hosts} hosts, {network.link}"
    caption = f"<strong>{what}.</strong> {describe(network)}. Grey: ours that is never the fastest."
    return plot(grey + curves, "bytes", "times the fastest", what, caption)


def _by_network(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        where = f"{row.hosts} hosts, {row.link}, {size_text(row.size_bytes)}"
        found.setdefault(where, []).append(row)
    return found


def _beside(what: str, rows: Sequence[Row]) -> str:
    shown = [
        Bar(row.method, [(row.median_s, _MAKERS[row.by])], f"{ms_text(row.median_s)} ms")
        for row in sorted(rows, key=lambda row: row.median_s)
    ]
    makers = {row.by for row in rows}
    legend = [(maker, style) for maker, style in _LEGEND if maker in makers]
    return bars(shown, what, f"{what}.", legend=legend)


def _by_hosts(measured: ExchangeMeasurement) -> Iterator[str]:
    rows = of_part("hosts", measured.rows)
    for size in sorted({row.size_bytes for row in rows}):
        found: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row.size_bytes == size:
                found.setdefault(row.method, []).append((float(row.hosts), 1e3 * row.median_s))
        yield _curves(f"{size_text(size)} on more and more hosts, {rows[0].link}", found)
    found = {}
    for one in measured.simulated:
        found.setdefault(one.method, []).append((float(one.hosts), 1e3 * one.took_s))
    if found:
        size = measured.simulated[0].size_bytes
        yield _curves(f"{size_text(size)} on a virtual clock", found)


def _curves(what: str, found: dict[str, list[tuple[float, float]]]) -> str:
    curves = [Curve(name, sorted(at), style(i)) for i, (name, at) in enumerate(found.items())]
    return plot(curves, "hosts", "ms", what, f"{what}.")
