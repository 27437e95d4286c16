"""`python -m benchmarks integrity`: what it costs to compare replicas, in turns in one run.

Replicas are compared in every step here, so that the cost can be told from noise; as configured by
default, one step in a hundred bears it. Perceptrons of 4.2 and 25 million parameters, int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Annotated, ClassVar, Literal

import typer
from pydantic import AwareDatetime, Field, PositiveInt

from benchmarks.paired import Overhead, columns
from benchmarks.perceptrons import WIDTH, PairsHeader, started_perceptrons
from compressa.config import Config
from compressa.machine import now
from harness import records
from harness.runner import JsonFile, Shown, Update, carry_out
from harness.tables import table_of

LAYERS = (4, 24)


class Row(Overhead):
    """Steps that compare replicas, as multiples of those that do not."""

    layers: PositiveInt
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return (self.layers,)

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return self.layers * (WIDTH + 1) * WIDTH

    @property
    def share(self) -> float:
        """What it costs of a run that compares as often as is configured by default."""
        return (self.ratio - 1) / Config().integrity.every


class Header(PairsHeader):
    """Where, when and how."""

    format: Literal["compressa.bench.integrity"] = "compressa.bench.integrity"


class IntegrityMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks integrity"

    header: Header
    rows: list[Row] = Field(default_factory=list)


class IntegrityBench:
    """Compares steps of perceptrons.

    Args:
        layers: How many each of them has.
        pairs: How often to compare times.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, layers: list[int], pairs: int) -> None:
        header = Header.here({"torch": version("torch")}, pairs=pairs)
        self.found, self._layers = IntegrityMeasurement(header=header), layers

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more.

        Raises:
            TransportError: A rank died or failed.
        """
        yield "starting two processes"
        with started_perceptrons() as ranks:
            off, on = ({"compressor": "int8", "integrity": {"every": every}} for every in (0, 1))
            for layers in self._layers:
                yield f"{layers} layers"
                pairs = self.found.header.pairs
                told = ranks.ask("compare", off=off, on=on, layers=layers, pairs=pairs)
                self.found.rows.append(Row(layers=layers, **told, timestamp=now()))


def shown(measured: IntegrityMeasurement) -> Shown:
    """Yield a table of all models."""
    yield table_of(
        "Steps that compare replicas, as multiples of those beside them that do not",
        measured.rows,
        {
            "parameters": lambda row: f"{row.parameters:,}",
            **columns("without", "compared in every step"),
            "of a run by default": lambda row: f"{row.share:.3%}",
        },
    )


LayersList = Annotated[
    list[int] | None,
    typer.Option("--layers", min=1, help="Of 1,024 x 1,024 weights; several times."),
]
Pairs = Annotated[int, typer.Option(min=2, help="How often to compare times.")]


def integrity(
    layers: LayersList = None,
    pairs: Pairs = 10,
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Train perceptrons by two processes that compare replicas and that do not, in turns.

    Takes a minute or two.
    """
    carry_out(IntegrityBench(layers or [*LAYERS], pairs), shown, json_file, update)
