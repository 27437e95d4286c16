"""How time grows with the number of elements, and what a call costs when there are hardly any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.kernels.cases import Case
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.records import Benchmark, Row
from benchmarks.kernels.run import Bench
from compressa.errors import BackendUnavailable

SIZES = tuple(round(10 ** (exponent / 2)) for exponent in range(8, 17))
"""10^4 to 10^8, two a decade."""

SMALL_ELEMS = 1024
MOST_FIXED_US = 30.0
"""The target: what a call on `SMALL_ELEMS` elements may take."""


def run(bench: Bench, cases: Sequence[Case]) -> Iterator[Row]:
    """Measure all cases at `SMALL_ELEMS`, and the main ones at `SIZES`, without peers.

    Yields the rows, in microseconds. Cases of one shape are left out.
    """
    free = [case for case in cases if not case.shape]
    with bench.hired():
        yield from _at(bench, free, SMALL_ELEMS, "kernels-fixed-cost")
        for elems in SIZES:
            yield from _at(bench, [case for case in free if case.main], elems, "kernels-scaling")


def _at(bench: Bench, cases: Sequence[Case], elems: int, benchmark: Benchmark) -> Iterator[Row]:
    operands = Operands(elems, bench.device)
    for case in cases:
        yield from bench.measure(case, operands, benchmark=benchmark, with_peers=False)


def require_matplotlib() -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:
        BackendUnavailable: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise BackendUnavailable(
            "--scaling draws a plot with matplotlib; install it with "
            "`pip install 'compressa[experiments]'`"
        )


def save_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the time against the number of elements, both on logarithmic scales, as a PNG.

    Args:
        rows: Of the benchmark "kernels-scaling"; others are left out.
        path: Where to.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes: Any = figure.subplots()
    curves = _curves(rows)
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, marker="o", markersize=3)
    _draw_linear(axes, curves)
    limit = f"{MOST_FIXED_US:.0f} us, for {SMALL_ELEMS:,} elements at most"
    axes.axhline(MOST_FIXED_US, color="grey", linestyle=":", linewidth=1, label=limit)
    axes.set(xscale="log", yscale="log", xlabel="elements", ylabel="microseconds per call")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def _curves(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.benchmark == "kernels-scaling":
            curves.setdefault(row.name, []).append((row.elems, row.median))
    return curves


def _draw_linear(axes: Any, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Draw a line of slope one through the last point of the quickest case."""
    if curves:
        last, time_us = min((points[-1] for points in curves.values()), key=lambda point: point[1])
        ends = (SIZES[0], last)
        line = [time_us * elems / last for elems in ends]
        axes.plot(ends, line, color="black", linestyle="--", linewidth=1, label="linear")
