"""What `python -m benchmarks kernels` leaves behind: one JSON file, checked when it is read."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, PositiveInt, model_validator

from harness import records
from harness.records import Positive

Benchmark = Literal["kernels", "kernels-scaling", "kernels-fixed-cost", "kernels-launch"]

Metric = Literal["time", "bandwidth"]
Unit = Literal["ms", "us", "GB/s"]

_AT = " @ "


class Row(records.Row):
    """One case on one number of elements, beside one peer.

    A case with several peers has a row for each; a peer without a median was not there, and the
    name says why. `limit_ratio` is the share of the memory bus's limit that was reached; it is None
    where no number of bytes is stated.
    """

    benchmark: Benchmark
    case: str = Field(pattern=r"^.+ @ [1-9][0-9]*$", description="name @ elements")
    metric: Metric
    unit: Unit
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
    def identity(self) -> tuple[object, ...]:
        """What was measured, beside what."""
        return self.benchmark, self.case, self.peer

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


class Header(records.Header):
    """Where and when."""

    format: Literal["compressa.bench"] = "compressa.bench"
    caches_bytes: dict[str, PositiveInt] = Field(description="of one core; empty if not known")

    @property
    def details(self) -> str:
        """Its caches."""
        return "".join(f"{name} {_binary(size)}, " for name, size in self.caches_bytes.items())


def _binary(size: int) -> str:
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


class Measurement(records.Measurement):
    """The whole file; the yardstick has a row for each number of elements."""

    command: ClassVar[str] = "python -m benchmarks kernels"

    header: Header
    rows: list[Row]
