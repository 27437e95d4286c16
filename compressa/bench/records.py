"""What a benchmark leaves behind: one JSON file of a header and rows, checked when it is read.

A row stands for itself: it names its case with the number of elements, what was measured, on how
many threads and when. The header says on which machine. Targets are not written down: they
belong to the table of cases, and what meets them is worked out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from compressa import files
from compressa.errors import ConfigError

Positive = Annotated[FiniteFloat, Field(gt=0)]
Share = Annotated[FiniteFloat, Field(ge=0)]
Benchmark = Literal["kernels", "kernels-scaling", "kernels-fixed-cost", "kernels-launch"]

Model = TypeVar("Model", bound=BaseModel)

_AT = " @ "
_MOST_BYTES = 64 << 20


class Strict(BaseModel):
    """What is written down: nothing else may stand there, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(Strict):
    """The median of several times, and how far they lie apart."""

    median_s: Positive
    p20_s: Positive
    p80_s: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p20_s <= self.median_s <= self.p80_s:
            raise ValueError("p20_s <= median_s <= p80_s does not hold")
        return self


class Row(Strict):
    """One case on one number of elements, beside one peer.

    A case with several peers has a row for each; a peer without a median was not there, and the
    name says why. `limit_ratio` is the share of the memory bus's
    limit that was reached; it is None where no number of bytes is stated.
    """

    benchmark: Benchmark
    case: str = Field(pattern=r"^.+ @ [1-9][0-9]*$", description="name @ elements")
    metric: Literal["time", "bandwidth"]
    unit: Literal["ms", "us", "GB/s"]
    median: Positive
    p20: Positive
    p80: Positive
    limit_ratio: Positive | None
    peer: str | None
    peer_median: Positive | None
    device: str
    threads: PositiveInt
    version: str
    timestamp: AwareDatetime

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.p20 <= self.median <= self.p80:
            raise ValueError("p20 <= median <= p80 does not hold")
        if self.peer is None and self.peer_median is not None:
            raise ValueError("a median of a peer that has no name")
        return self

    @property
    def name(self) -> str:
        """The case's name, without the number of elements."""
        return self.case.rpartition(_AT)[0]

    @property
    def elems(self) -> int:
        """Number of elements."""
        return int(self.case.rpartition(_AT)[2])

    @property
    def speedup(self) -> float | None:
        """How many times the peer's time this case's is."""
        return None if self.peer_median is None else self.peer_median / self.median


def case_at(name: str, elems: int) -> str:
    """Return what a row's `case` says of a case on so many elements."""
    return f"{name}{_AT}{elems}"


class Bandwidth(Strict):
    """The yardstick: an in-place update stream over so many elements, over the whole run."""

    elems: PositiveInt
    threads: PositiveInt
    median_gb_per_s: Positive
    p20_gb_per_s: Positive
    p80_gb_per_s: Positive


class Header(Strict):
    """Where and when."""

    format: Literal["compressa.bench"] = "compressa.bench"
    format_version: Literal[1] = 1
    cpu: str
    cores: PositiveInt
    caches_bytes: dict[str, PositiveInt] = Field(description="of one core; empty if not known")
    memory_bytes: PositiveInt
    system: str
    versions: dict[str, str]
    yardstick: list[Bandwidth]
    timestamp: AwareDatetime


class Measurement(Strict):
    """The whole file."""

    header: Header
    rows: list[Row]


def write(path: Path, measurement: BaseModel) -> None:
    """Write a file whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(measurement.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def read(path: Path) -> Measurement:
    """Read and check a file.

    Raises:
        ConfigError: It cannot be read, or is no measurement; the message names the place.
    """
    return read_as(Measurement, path, "compressa bench")


def read_as(kind: type[Model], path: Path, command: str) -> Model:
    """Read and check a file of one kind.

    Args:
        kind: What it should hold.
        path: The file.
        command: What writes such files.

    Raises:
        ConfigError: It cannot be read, or is of another kind; the message names the place.
    """
    try:
        data = files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {files.reason(error)}") from error
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(
            f"{path} is no measurement of `{command}`: {place}: {first['msg']}"
        ) from error
