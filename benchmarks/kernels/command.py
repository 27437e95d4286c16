"""`python -m benchmarks kernels`: what compressors cost on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kernels import Bench, Case, Measurement, launches, scaling
from benchmarks.kernels.device import CPU, BenchDevice, current_gpu
from benchmarks.kernels.launches import LAUNCHES, LaunchCase
from benchmarks.kernels.table import cases_on
from benchmarks.kernels.tables import shown
from compressa.errors import ConfigError
from harness.runner import JsonFile, Update, carry_out, refuse_unmatched


class _Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


Elems = Annotated[
    list[float] | None,
    typer.Option(
        help="Elements; may be given several times. 25e6 and 200e6 if left out, on a GPU 100e6."
    ),
]
Where = Annotated[_Device, typer.Option(help="Where compressors run: the CPU, or the current GPU.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that share a call.")]
Pattern = Annotated[str, typer.Option(help="Only cases whose names match this pattern.")]
Scaling = Annotated[
    bool,
    typer.Option(
        "--scaling",
        help="Also from 1e4 to 1e8 elements, with a plot beside the JSON file, and the fixed "
        "cost of a call.",
    ),
]
Repeats = Annotated[int, typer.Option(min=7, help="Samples per case, at least 7.")]


def kernels(
    elems: Elems = None,
    device: Where = _Device.CPU,
    threads: Threads = 2,
    case: Pattern = "*",
    json_file: JsonFile = None,
    update: Update = None,
    with_scaling: Scaling = False,
    repeats: Repeats = 9,
) -> None:
    """Time every compressor against the memory bus and against plain implementations.

    "Of the limit" is the time in which the bytes of a call could cross the memory bus, over the
    time taken; docs/benchmarks/kernels.md says how it is measured. The two default sizes take about
    six minutes on two cores, and up to 10 GB.

    On a GPU also with gradients in bfloat16, and what launches cost.
    """
    where = CPU if device is _Device.CPU else current_gpu()
    sizes, (cases, small) = _sizes(elems, where), _matching(case, where.kind)
    file = json_file or update
    if with_scaling:
        _require_file(file)
    bench = Bench(threads=threads, repeats=repeats, device=where)
    carry_out(_Run(bench, cases, small, sizes, with_scaling), shown, json_file, update)
    if with_scaling and file is not None:
        scaling.save_plot(bench.rows, file.with_suffix(".png"))
    typer.echo(f"Targets hold at {where.default_elems[-1]:,} elements.")
    lacking = {case.name for case in cases if case.build() is None} | bench.unavailable
    if lacking:
        known = [*(case.name for case in cases), *(case.name for case in LAUNCHES)]
        typer.echo(f"Not there yet: {', '.join(name for name in known if name in lacking)}.")


@dataclass(frozen=True)
class _Run:
    """All that was asked for, for the runner."""

    bench: Bench
    cases: Sequence[Case]
    small: Sequence[LaunchCase]
    sizes: Sequence[int]
    with_scaling: bool

    @property
    def found(self) -> Measurement:
        return self.bench.measurement()

    def run(self) -> Iterator[str]:
        rows = (
            launches.run(self.bench, self.small),  # first: compiling peers may take minutes
            self.bench.run(self.cases, self.sizes),
            scaling.run(self.bench, self.cases) if self.with_scaling else (),
        )
        for row in chain.from_iterable(rows):
            yield f"measured {row.case}"


def _sizes(given: Sequence[float] | None, device: BenchDevice) -> list[int]:
    if not given:
        return list(device.default_elems)
    wrong = [size for size in given if size < 1 or not size.is_integer()]
    if wrong:
        raise ConfigError(f"--elems: {wrong[0]:g} is no number of elements")
    return [int(size) for size in given]


def _matching(pattern: str, kind: str) -> tuple[list[Case], list[LaunchCase]]:
    known, known_small = cases_on(kind), LAUNCHES if kind == "cuda" else ()
    names = [*(case.name for case in known), *(case.name for case in known_small)]
    refuse_unmatched("--case", pattern, names)
    cases = [case for case in known if fnmatchcase(case.name, pattern)]
    return cases, [case for case in known_small if fnmatchcase(case.name, pattern)]


def _require_file(json_file: Path | None) -> None:
    if json_file is None:
        raise ConfigError("--scaling draws a plot beside the JSON file; say where with --json")
    scaling.require_matplotlib()
