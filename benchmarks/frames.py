"""`python -m benchmarks frames`: what MACs cost, beside checksums, in turns in one run.

A perceptron of 4.2 million parameters, trained by each of several compressors.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Annotated, ClassVar, Literal

import typer
from pydantic import AwareDatetime, Field

from benchmarks.paired import Overhead, columns
from benchmarks.perceptrons import PairsHeader, started_perceptrons
from compressa.machine import now
from harness import records
from harness.runner import JsonFile, Shown, Update, What, carry_out, refuse_unmatched
from harness.tables import table_of

COMPRESSORS = ("none", "int8", "topk", "powersgd")
_LAYERS = 4
_SECRET = "known to everybody who reads this"


class Row(Overhead):
    """Steps of a compressor with MACs, as multiples of those with checksums."""

    compressor: str
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return (self.compressor,)


class Header(PairsHeader):
    """Where, when and how."""

    format: Literal["compressa.bench.frames"] = "compressa.bench.frames"


class FramesMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks frames"

    header: Header
    rows: list[Row] = Field(default_factory=list)


class FramesBench:
    """Compares steps of each compressor.

    Args:
        pairs: How often to compare times.
        pattern: That names of compressors match.

    Attributes:
        found: What was measured so far.

    Raises:
        ConfigError: No name does.
    """

    def __init__(self, pairs: int, pattern: str) -> None:
        refuse_unmatched("--what", pattern, COMPRESSORS)
        header = Header.here({"torch": version("torch")}, pairs=pairs)
        self.found, self._pattern = FramesMeasurement(header=header), pattern

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        yield "starting two processes"
        with started_perceptrons() as ranks:
            path = ranks.folder / "secret"
            path.touch(mode=0o600)
            path.write_text(_SECRET, encoding="utf-8")
            keyed = {"authenticate": True, "secret_file": str(path)}
            for name in (each for each in COMPRESSORS if fnmatchcase(each, self._pattern)):
                yield name
                off, on = ({"compressor": name, "exchange": exchange} for exchange in ({}, keyed))
                pairs = self.found.header.pairs
                told = ranks.ask("compare", off=off, on=on, layers=_LAYERS, pairs=pairs)
                self.found.rows.append(Row(compressor=name, **told, timestamp=now()))


def shown(measured: FramesMeasurement) -> Shown:
    """Yield a table of all compressors."""
    named = {"compressor": lambda row: row.compressor}
    yield table_of(
        "Steps with MACs, as multiples of those with checksums beside them",
        measured.rows,
        named | columns("with checksums", "with MACs"),
    )


Pairs = Annotated[int, typer.Option(min=2, help="How often to compare times.")]


def frames(
    pairs: Pairs = 20, what: What = "*", json_file: JsonFile = None, update: Update = None
) -> None:
    """Train a perceptron by two processes, with checksums and with MACs, in turns in one run.

    Takes a minute or two.
    """
    carry_out(FramesBench(pairs, what), shown, json_file, update)
